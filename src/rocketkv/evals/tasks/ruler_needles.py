"""RULER's eight needle tasks: keys with magic values, in noise, in an essay or among other needles.

Differs from the original: keys of one prompt are all different; words come from our own list; the essay is the text the
user names instead of Paul Graham's, by default CPython's language reference; sentences are cut by a regular expression.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rocketkv.evals.tasks.haystack import NOISE, load_haystack, split_sentences
from rocketkv.evals.tasks.ruler import Draft, RulerTask
from rocketkv.evals.tasks.words import word_key

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
DEPTHS = [round(100 * place / 39) for place in range(40)]
"""Percent of an essay's sentences before a needle."""


@dataclass(frozen=True)
class Recipe:
    """What a needle task is made of. haystack: noise, essay or needles; keys: words or uuids; values: numbers or uuids.

    key_count keys have `values_per_key` values each, and the last `queries` keys in random order are asked for.
    """

    haystack: str
    keys: str = "words"
    values: str = "numbers"
    key_count: int = 1
    values_per_key: int = 1
    queries: int = 1


RECIPES = {
    "niah_single_1": Recipe("noise"),
    "niah_single_2": Recipe("essay"),
    "niah_single_3": Recipe("essay", values="uuids"),
    "niah_multikey_1": Recipe("essay", key_count=4),
    "niah_multikey_2": Recipe("needles"),
    "niah_multikey_3": Recipe("needles", keys="uuids", values="uuids"),
    "niah_multivalue": Recipe("essay", values_per_key=4),
    "niah_multiquery": Recipe("essay", key_count=4, queries=4),
}


@dataclass(frozen=True)
class RulerNeedles(RulerTask):
    """Return the magic values of one or more keys. `haystack`: the essay: "pydoc", a text file or a folder."""

    haystack: str = "pydoc"

    new_tokens: ClassVar[int] = 128
    load_haystack = staticmethod(str)

    def step(self, max_tokens: int) -> int:
        """500 words of an essay; 25 lines of another haystack, 5 for lengths below 4,096."""
        if self._recipe.haystack == "essay":
            return 500
        return 25 if max_tokens >= 4096 else 5

    def draft(self, size: int, index: int, draw: random.Random, *, tokenizer: Any, max_tokens: int) -> Draft:
        """As `RulerTask.draft`."""
        recipe = self._recipe
        values = {key: _some(recipe.values, recipe.values_per_key, draw)
                  for key in _some(recipe.keys, recipe.key_count, draw)}  # fmt: skip
        asked = draw.sample(list(values), recipe.queries)
        needles = [NEEDLE.format(kind=recipe.values, key=key, value=v) for key, found in values.items() for v in found]
        draw.shuffle(needles)
        text, places = self._hidden(needles, list(values), size, draw)
        one = recipe.queries * recipe.values_per_key == 1
        kind = recipe.values.removesuffix("s") if one else recipe.values
        some, are, are_all = ("A", "is", "is") if one else ("Some", "are", "are all")
        query = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])}, and {asked[-1]}"
        opening = (
            f"{some} special magic {kind} {are} hidden within the following text. Make sure to memorize it. "
            f"I will quiz you about the {kind} afterwards.\n"
        )
        question = f"\nWhat {are_all} the special magic {kind} for {query} mentioned in the provided text?"
        prefix = f" The special magic {kind} for {query} mentioned in the provided text {are}"
        source = self.haystack if recipe.haystack == "essay" else recipe.haystack
        answers = tuple(value for key in asked for value in values[key])
        meta: dict[str, Any] = {"haystack": source, "needles": needles, "depths": places}
        if one:
            meta["depth"] = places[needles.index(NEEDLE.format(kind=recipe.values, key=asked[0], value=answers[0]))]
        return Draft(opening + text, question, prefix, answers, meta)

    def _hidden(self, needles: list[str], keys: list[str], size: int, draw: random.Random) -> tuple[str, list[float]]:
        """The haystack with the needles in it, and the share of its pieces before each of them."""
        recipe = self._recipe
        if recipe.haystack == "essay":
            words = load_haystack(self.haystack).words
            pieces = split_sentences(" ".join((words * (size // len(words) + 1))[:size]))
            places = sorted(int(len(pieces) * depth / 100) for depth in draw.sample(DEPTHS, len(needles)))
        else:
            pieces = [NOISE] * size
            if recipe.haystack == "needles":
                others = _some(recipe.keys, size, draw, but=keys)
                pieces = [NEEDLE.format(kind=recipe.values, key=key, value=_some(recipe.values, 1, draw)[0])
                          for key in others]  # fmt: skip
            places = sorted(draw.sample(range(size), len(needles)))
        shares = [place / len(pieces) for place in places]
        for place, needle in reversed(list(zip(places, needles, strict=True))):
            pieces.insert(place, needle)
        return (" " if recipe.haystack == "essay" else "\n").join(pieces), shares

    @property
    def _recipe(self) -> Recipe:
        return RECIPES[self.variant]

    def _suffix(self) -> str:
        essay = f"-{self.haystack}" if self._recipe.haystack == "essay" else ""
        return essay + super()._suffix()


def _number(draw: random.Random) -> str:
    return str(draw.randint(1_000_000, 9_999_999))


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


MAKERS: dict[str, Callable[[random.Random], str]] = {"words": word_key, "numbers": _number, "uuids": _uuid}


def _some(kind: str, count: int, draw: random.Random, but: list[str] | None = None) -> list[str]:
    """`count` different keys or values, none of them in `but`."""
    found: dict[str, None] = {}
    while len(found) < count:
        made = MAKERS[kind](draw)
        if made not in (but or ()):
            found[made] = None
    return list(found)
