"""Small tasks with exact answers to compare, and a sweep over them."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rocketkv.evals.answering import Settings
from rocketkv.evals.contenders import make_contenders
from rocketkv.evals.runner import Job, Origin, sweep
from rocketkv.evals.task import Conversation, Example, Task, Turn
from support.byte_model import byte_model, byte_tokenizer

NEW_TOKENS = 8


@dataclass(frozen=True)
class Letters(Task):
    """Random letters; the score is the share of letters in the answer."""

    chat: bool = False

    @property
    def name(self) -> str:
        return "letters"

    def examples(self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42) -> Iterator[Example]:
        for index in range(n or 2):
            draw = random.Random(f"{seed}/{index}")
            text = "".join(draw.choices("abcdefgh ", k=max_tokens - 80 - 7 * index))
            meta = {"index": index, "depth": index / 2}
            name = f"letters-{max_tokens}-{seed}-{index}"
            yield Example(name, text, "\nWhich?", " It is", ("abc",), NEW_TOKENS, self.chat, meta)

    def score(self, prediction: str, example: Example) -> float:
        return sum(map(str.isalpha, prediction)) / max(len(prediction), 1)


@dataclass(frozen=True)
class Talk(Letters):
    """The same as conversations of three turns."""

    multi_turn: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "talk"

    def examples(self, tokenizer: Any, **options: Any) -> Iterator[Conversation]:
        for example in super().examples(tokenizer, **options):
            turns = tuple(Turn(f"\nQuestion {word}?", (f"{word} {word}",), " So") for word in ("one", "two", "three"))
            yield Conversation(example.id, example.context, turns, NEW_TOKENS, self.chat, example.meta)


class Silent:
    """A watcher that only counts."""

    def __init__(self) -> None:
        self.scored_records = 0
        self.begun: tuple[int, int] | None = None
        self.readings = 0

    def begin(self, prompts: int, done: int) -> None:
        self.begun = (prompts, done)

    def reading(self, number: int, tokens: int) -> None:
        self.readings += 1

    def scored(self, records: Sequence[dict[str, Any]]) -> None:
        self.scored_records += len(records)


def run_sweep(
    folder: Path,
    task: Task,
    *,
    specs: Sequence[str] = ("full", "rocketkv", "quest"),
    budgets: Sequence[int] = (32, 64),
    n: int = 2,
    max_tokens: int = 300,
    max_cache_bytes: int | None = None,
    watcher: Silent | None = None,
    **origin: Any,
) -> list[dict[str, Any]]:
    """Records of a sweep of the tiny byte model."""
    return sweep(
        byte_model(),
        byte_tokenizer(),
        [Job(task, max_tokens, n)],
        make_contenders(specs, budgets),
        folder,
        Origin(model="tiny", **origin),
        Settings(max_cache_bytes=max_cache_bytes, spill_folder=folder, backend="reference"),
        watcher or Silent(),
    )


def comparable(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what depends on the clock and on the state of the checkout."""
    left_out = ("measured", "commit", "dirty")
    return [{key: value for key, value in record.items() if key not in left_out} for record in records]
