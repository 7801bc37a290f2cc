"""Needle in a haystack: a 7-digit pass key at a given depth of a text of a given length.

Wording: the passkey task (Mohtashami and Jaggi, 2023, arXiv:2305.16300); the grid of lengths and depths: Kamradt, 2023.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rocketkv.evals.task import Example, Task
from rocketkv.evals.tasks.fitting import count_tokens, largest_size, room_for_prompt, uses_chat
from rocketkv.evals.tasks.haystack import load_haystack
from rocketkv.evals.tasks.match import string_match_all, without_separators

OPENING = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.\n\n"
)
QUESTION = "\n\nWhat is the pass key?"
PREFIX = " The pass key is"
NEW_TOKENS = 16


@dataclass(frozen=True)
class Needle(Task):
    """Find the pass key. Example i lies at depth i modulo `depths`, so that n = depths x repeats fills the grid evenly.

    depths: how many, evenly from 0 (before the text) to 1 (behind it); a single one lies at 0.5.
    haystack: "noise", "pydoc", or the path of a text file or folder.
    chat: with the chat template; if None, where the tokenizer has one.
    """

    depths: int = 10
    haystack: str = "pydoc"
    chat: bool | None = None

    load_haystack = staticmethod(str)

    def __post_init__(self) -> None:
        if self.depths < 1:
            raise ValueError(f"depths={self.depths} is below 1: give the number of depths")

    @property
    def name(self) -> str:
        """niah."""
        return "niah"

    def depth(self, index: int) -> float:
        """The depth of example `index`, from 0 to 1."""
        return 0.5 if self.depths == 1 else index % self.depths / (self.depths - 1)

    def examples(self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42) -> Iterator[Example]:
        """As `Task.examples`; one example a depth if n is None."""
        chat = uses_chat(tokenizer, self.chat)
        room = room_for_prompt(tokenizer, max_tokens=max_tokens, new_tokens=NEW_TOKENS, chat=chat)
        for index in range(self.depths if n is None else n):
            yield self._example(tokenizer, room, max_tokens, seed, index, chat)

    def score(self, prediction: str, example: Example) -> float:
        """1 if the pass key occurs; commas between digits do not count."""
        return string_match_all(without_separators(prediction), example.references)

    def _example(self, tokenizer: Any, room_tokens: int, max_tokens: int, seed: int, index: int, chat: bool) -> Example:
        draw = random.Random(f"niah/{seed}/{index}")
        number = str(draw.randint(1_000_000, 9_999_999))
        needle = f"The pass key is {number}. Remember it. {number} is the pass key."
        source = load_haystack(self.haystack).sentences_from(draw)
        taken: list[str] = []

        def context(size: int) -> str:
            taken.extend(itertools.islice(source, max(0, size - len(taken))))
            return OPENING + planted(taken[:size], needle, self.depth(index))

        def tokens_of(size: int) -> int:
            return count_tokens(tokenizer, context(size) + QUESTION + PREFIX)

        text = context(largest_size(tokens_of, step=1, limit_tokens=room_tokens))
        meta = {
            "task": self.name, "length_tokens": max_tokens, "seed": seed, "index": index, "depth": self.depth(index),
            "haystack": self.haystack, "needles": [needle],
        }  # fmt: skip
        name = f"{self.name}-{max_tokens}-{seed}-{self.haystack}-{self.depths}-{index}{'-chat' if chat else ''}"
        return Example(name, text, QUESTION, PREFIX, (number,), NEW_TOKENS, chat, meta)


def planted(sentences: list[str], needle: str, depth: float) -> str:
    """The sentences with the needle between two of them: `depth` of the characters come before it."""
    ends = list(itertools.accumulate(len(sentence) + 1 for sentence in sentences))
    place = min(range(len(sentences) + 1), key=lambda i: abs((ends[i - 1] if i else 0) - depth * ends[-1]))
    return " ".join([*sentences[:place], needle, *sentences[place:]])
