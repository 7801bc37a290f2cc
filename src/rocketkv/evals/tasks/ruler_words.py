"""RULER's two counting tasks: the common words of a list, and the frequent coded words of a text.

Differs from the original: words come from our own list; a length includes the 50 generated tokens of the coded text
too, which the original's may exceed.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import Any, ClassVar

from rocketkv.evals.tasks.ruler import Draft, RulerTask
from rocketkv.evals.tasks.words import distinct_words

CWE_OPENING = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n"
)
CWE_QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON_WORDS = 10
SHORT_TOKENS = 4096
"""Below this length words are repeated less often."""

FWE_OPENING = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. "
)
FWE_QUESTION = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
    "appeared words in the above coded text?"
)
FWE_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
CODE_LETTERS = 6


@dataclass(frozen=True)
class RulerCommonWords(RulerTask):
    """cwe: ten words thirty times among words three times (6 and 1 below 4,096 tokens), after one worked example."""

    new_tokens: ClassVar[int] = 120

    def step(self, max_tokens: int) -> int:
        """10 different words."""
        return 10

    def draft(self, size: int, index: int, draw: random.Random, *, tokenizer: Any, max_tokens: int) -> Draft:
        """As `RulerTask.draft`."""
        short = max_tokens < SHORT_TOKENS
        example, example_common = _word_list(20 if short else 40, *((3, 1) if short else (10, 3)), draw)
        listed, common = _word_list(size, *((6, 1) if short else (30, 3)), draw)
        worked = f"{CWE_OPENING}{example}{CWE_QUESTION}{CWE_PREFIX}{self.answer_text(example_common)}\n"
        return Draft(
            worked + CWE_OPENING + listed, CWE_QUESTION, CWE_PREFIX, common, {"words": max(size, COMMON_WORDS)}
        )

    def answer_text(self, references: tuple[str, ...]) -> str:
        """A numbered list on one line."""
        return _numbered(references)


@dataclass(frozen=True)
class RulerFrequentWords(RulerTask):
    """fwe: a text of coded words whose counts follow a zeta distribution; name the second to the fourth most frequent.

    alpha: exponent of the distribution, above 1. The most frequent word is written as dots and is noise.
    """

    alpha: float = 2.0

    new_tokens: ClassVar[int] = 50

    def __post_init__(self) -> None:
        if self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha} is not above 1, where the counts have no sum: 2 is the original's")

    def step(self, max_tokens: int) -> int:
        """A 128th of the length, in words: a quarter of the original's step, whose texts may be too long instead."""
        return max(1, max_tokens // 128)

    def draft(self, size: int, index: int, draw: random.Random, *, tokenizer: Any, max_tokens: int) -> Draft:
        """As `RulerTask.draft`. The vocabulary has a word for every 50 tokens."""
        coded: dict[str, None] = {}
        while len(coded) < max(4, max_tokens // 50):
            coded["".join(draw.choices(string.ascii_lowercase, k=CODE_LETTERS))] = None
        vocabulary = ["...", *list(coded)[1:]]
        total = zeta(self.alpha)
        counts = [int(size * rank**-self.alpha / total) for rank in range(1, len(vocabulary) + 1)]
        text = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
        draw.shuffle(text)
        answers = tuple(vocabulary[1:4])
        return Draft(FWE_OPENING + " ".join(text), FWE_QUESTION, FWE_PREFIX, answers, {"counts": counts[:5]})

    def _suffix(self) -> str:
        return f"-{self.alpha:g}" + super()._suffix()


def zeta(alpha: float, terms: int = 1000) -> float:
    """The sum of k^-alpha over all whole k from 1 on, for alpha above 1 (Euler-Maclaurin: to 1e-12)."""
    tail = terms ** (1 - alpha) / (alpha - 1) - terms**-alpha / 2 + alpha * terms ** (-alpha - 1) / 12
    return float(sum(k**-alpha for k in range(1, terms + 1)) + tail)


def _word_list(count: int, common_repeats: int, other_repeats: int, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """A numbered list of `count` different words, at least the common ones, on one line; and the common ones."""
    words = distinct_words(max(count, COMMON_WORDS), draw)
    common, others = words[:COMMON_WORDS], words[COMMON_WORDS:]
    repeated = common * common_repeats + others * other_repeats
    draw.shuffle(repeated)
    return _numbered(repeated), tuple(common)


def _numbered(words: list[str] | tuple[str, ...]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))
