"""RULER's variable tracking: one chain of assignments hidden in noise, after one worked example."""

from __future__ import annotations

import itertools
import random
import string
from dataclasses import dataclass
from typing import Any, ClassVar

from rocketkv.evals.tasks.fitting import count_tokens, largest_size
from rocketkv.evals.tasks.haystack import NOISE
from rocketkv.evals.tasks.ruler import Draft, RulerTask

OPENING = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
QUESTION = "\nQuestion: Find all variables that are assigned the value {value} in the text above."
# "assgined" is the original's spelling; a model reads these words, so they are kept.
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assgined the "
    "value {value}, they are: "
)
HOPS = 4
NAME_LETTERS, EXAMPLE_NAME_LETTERS = 5, 3
EXAMPLE_TOKENS, EXAMPLE_STEP = 470, 5


@dataclass(frozen=True)
class RulerTracking(RulerTask):
    """Name all variables that hold a value, through four hops."""

    new_tokens: ClassVar[int] = 30

    def step(self, max_tokens: int) -> int:
        """10 lines of noise."""
        return 10

    def draft(self, size: int, index: int, draw: random.Random, *, tokenizer: Any, max_tokens: int) -> Draft:
        """As `RulerTask.draft`.

        The worked example has at most 470 tokens and a quarter of the length, but one line of noise at least.
        """
        example = _worked_example(draw, tokenizer, min(EXAMPLE_TOKENS, max_tokens // 4))
        names, value, text = chain_in_noise(size, NAME_LETTERS, draw)
        return Draft(
            f" {example}\n\n\n\n{OPENING}{text}", QUESTION.format(value=value),
            PREFIX.format(count=len(names), value=value), tuple(names), {"haystack": "noise", "hops": HOPS},
        )  # fmt: skip


def chain_in_noise(lines: int, letters: int, draw: random.Random, hops: int = HOPS) -> tuple[list[str], str, str]:
    """The names of a chain in their order, the value of all, and the text that assigns them between lines of noise."""
    names = _names(hops + 1, letters, draw)
    value = str(draw.randint(10_000, 99_998))
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {name} = VAR {earlier} " for earlier, name in itertools.pairwise(names)]
    pieces = [f"{NOISE}\n"] * lines
    places = sorted(draw.sample(range(lines), len(chain))) if lines > len(chain) else [0] * len(chain)
    for number, (place, assignment) in enumerate(zip(places, chain, strict=True)):
        pieces.insert(place + number, assignment)
    return names, value, " ".join(pieces)


def _names(count: int, letters: int, draw: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(draw.choices(string.ascii_uppercase, k=letters))] = None
    return list(found)


def _worked_example(draw: random.Random, tokenizer: Any, limit_tokens: int) -> str:
    seed = draw.random()

    def text_of(size: int) -> str:
        names, value, text = chain_in_noise(size, EXAMPLE_NAME_LETTERS, random.Random(seed))
        asked = QUESTION.format(value=value) + PREFIX.format(count=len(names), value=value)
        return f"{OPENING}{text}{asked} {' '.join(names)}"

    def tokens_of(size: int) -> int:
        return count_tokens(tokenizer, text_of(size))

    if tokens_of(1) > limit_tokens:  # a line of noise at least, for tokenizers with short tokens
        return text_of(1)
    return text_of(largest_size(tokens_of, step=EXAMPLE_STEP, limit_tokens=limit_tokens))
