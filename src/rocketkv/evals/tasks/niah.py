"""Needle in a haystack: a 7-digit number at a given depth of a text of a given length.

Wordings: RULER's single needle (Hsieh et al., 2024, arXiv:2404.06654), which small models understand too, or the
passkey task (Mohtashami and Jaggi, 2023, arXiv:2305.16300); the grid of lengths and depths: Kamradt, 2023.
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


@dataclass(frozen=True)
class Wording:
    """How the text is announced, the number hidden in it ({number}), and asked for."""

    opening: str
    needle: str
    question: str
    prefix: str


KEY = "lantern"
WORDINGS = {
    "magic": Wording(
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the numbers afterwards.\n\n",
        f"One of the special magic numbers for {KEY} is: {{number}}.",
        f"\n\nWhat is the special magic number for {KEY} mentioned in the provided text?",
        f" The special magic number for {KEY} mentioned in the provided text is",
    ),
    "passkey": Wording(
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
        "I will quiz you about the important information there.\n\n",
        "The pass key is {number}. Remember it. {number} is the pass key.",
        "\n\nWhat is the pass key?",
        " The pass key is",
    ),
}
NEW_TOKENS = 16


@dataclass(frozen=True)
class Needle(Task):
    """Find a 7-digit number. Example i lies at depth i modulo `depths`: n = depths x repeats fills the grid evenly.

    depths: how many, evenly from 0 (before the text) to 1 (behind it); a single one lies at 0.5.
    haystack: "noise", "pydoc", or the path of a text file or folder.
    chat: with the chat template; if None, where the tokenizer has one.
    wording: "magic" (RULER's words) or "passkey".
    """

    depths: int = 10
    haystack: str = "pydoc"
    chat: bool | None = None
    wording: str = "magic"

    load_haystack = staticmethod(str)
    load_wording = staticmethod(str)

    def __post_init__(self) -> None:
        if self.depths < 1:
            raise ValueError(f"depths={self.depths} is below 1: give the number of depths")
        if self.wording not in WORDINGS:
            raise ValueError(f"wording={self.wording!r} is unknown: choose {' or '.join(WORDINGS)}")

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
        """1 if the number occurs; commas between digits do not count."""
        return string_match_all(without_separators(prediction), example.references)

    def _example(self, tokenizer: Any, room_tokens: int, max_tokens: int, seed: int, index: int, chat: bool) -> Example:
        draw = random.Random(f"niah/{seed}/{index}")
        number = str(draw.randint(1_000_000, 9_999_999))
        words = WORDINGS[self.wording]
        needle = words.needle.format(number=number)
        source = load_haystack(self.haystack).sentences_from(draw)
        taken: list[str] = []

        def context(size: int) -> str:
            taken.extend(itertools.islice(source, max(0, size - len(taken))))
            return words.opening + planted(taken[:size], needle, self.depth(index))

        def tokens_of(size: int) -> int:
            return count_tokens(tokenizer, context(size) + words.question + words.prefix)

        text = context(largest_size(tokens_of, step=1, limit_tokens=room_tokens))
        meta = {
            "task": self.name, "length_tokens": max_tokens, "seed": seed, "index": index, "depth": self.depth(index),
            "haystack": self.haystack, "wording": self.wording, "needles": [needle],
        }  # fmt: skip
        kind = f"{self.wording}-{self.haystack}-{self.depths}"
        name = f"{self.name}-{max_tokens}-{seed}-{kind}-{index}{'-chat' if chat else ''}"
        return Example(name, text, words.question, words.prefix, (number,), NEW_TOKENS, chat, meta)


def planted(sentences: list[str], needle: str, depth: float) -> str:
    """The sentences with the needle between two of them: `depth` of the characters come before it."""
    ends = list(itertools.accumulate(len(sentence) + 1 for sentence in sentences))
    place = min(range(len(sentences) + 1), key=lambda i: abs((ends[i - 1] if i else 0) - depth * ends[-1]))
    return " ".join([*sentences[:place], needle, *sentences[place:]])
