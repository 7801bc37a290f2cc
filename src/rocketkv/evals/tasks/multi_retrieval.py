"""Multi-turn retrieval: values of keys, strings by their ends, chains of variables."""

from __future__ import annotations

import random
import string
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

from rocketkv.evals.task import Turn
from rocketkv.evals.tasks.haystack import NOISE
from rocketkv.evals.tasks.multi_turn import MultiTurn

KEY_VALUE_OPENING = "Extract the value corresponding to the specified key in the JSON object below.\n\n"
STRINGS_OPENING = (
    "Below is a list of strings. I will ask you for the string with a given beginning and a given end.\n\n"
)
TRACKING_OPENING = (
    "Memorize and track the chains of variable assignment hidden in the following text. I will ask you about their "
    "values afterwards.\n\n"
)
HOPS = 2


@dataclass(frozen=True)
class KeyValues(MultiTurn):
    """The value of a UUID key in a JSON object of UUID pairs; every turn asks for another key."""

    new_tokens: ClassVar[int] = 48

    @property
    def name(self) -> str:
        """multi/kv."""
        return "multi/kv"

    def draft(self, size: int, draw: random.Random) -> tuple[str, list[Turn], dict[str, Any]]:
        """As `MultiTurn.draft`; size: pairs."""
        pairs = [(_uuid(draw), _uuid(draw)) for _ in range(size)]
        asked = random.Random(draw.random()).sample(range(size), self.turns)
        turns = [
            Turn(
                f'\n\nKey: "{pairs[place][0]}"\n', (pairs[place][1],), "The value associated with the specified key is:"
            )
            for place in asked
        ]
        return KEY_VALUE_OPENING + json_object(pairs), turns, {"depths": [place / size for place in asked]}


@dataclass(frozen=True)
class PrefixSuffix(MultiTurn):
    """The only string with a given beginning and end, among strings that share either with it."""

    letters: int = 12
    """Of a whole string; a quarter of them are given at each end."""

    new_tokens: ClassVar[int] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.letters < 8:
            raise ValueError(f"letters={self.letters} is below 8: strings could not differ enough, give more")

    @property
    def name(self) -> str:
        """multi/prefix-suffix."""
        return "multi/prefix-suffix"

    @property
    def least(self) -> int:
        """A group of three for each turn."""
        return 3 * self.turns

    def draft(self, size: int, draw: random.Random) -> tuple[str, list[Turn], dict[str, Any]]:
        """As `MultiTurn.draft`; size: strings, in threes: one to ask for and two that share an end with it."""
        end = self.letters // 4
        whole: list[str] = []
        wanted: list[str] = []
        ends: set[tuple[str, str]] = set()
        while len(whole) < size - size % 3:
            word = _letters(self.letters, draw)
            others = [_letters(self.letters - end, draw) for _ in range(2)]
            near = (word, word[:end] + others[0], others[1] + word[-end:])
            group = {(made[:end], made[-end:]): made for made in near}
            if len(group) < 3 or group.keys() & ends:
                continue
            ends |= group.keys()
            wanted.append(word)
            whole += group.values()
        draw.shuffle(whole)
        turns = [
            Turn(
                f'\n\nWhich string begins with "{word[:end]}" and ends with "{word[-end:]}"?\n',
                (word,),
                "The string is:",
            )
            for word in wanted[: self.turns]
        ]
        depths = [whole.index(word) / len(whole) for word in wanted[: self.turns]]
        return STRINGS_OPENING + "\n".join(whole), turns, {"depths": depths}


@dataclass(frozen=True)
class Tracking(MultiTurn):
    """All variables with a given value, through chains of two hops in noise; every turn asks for another chain."""

    new_tokens: ClassVar[int] = 40

    @property
    def name(self) -> str:
        """multi/vt."""
        return "multi/vt"

    def draft(self, size: int, draw: random.Random) -> tuple[str, list[Turn], dict[str, Any]]:
        """As `MultiTurn.draft`; size: lines of noise."""
        names: dict[str, None] = {}
        while len(names) < self.turns * (HOPS + 1):
            names[_letters(5, draw).upper()] = None
        free = list(names)
        values = draw.sample(range(10_000, 99_999), self.turns)
        lines = [(float(place), NOISE) for place in range(size)]
        turns = []
        for value in values:
            chain = [free.pop() for _ in range(HOPS + 1)]
            places = sorted(draw.uniform(0, size) for _ in chain)
            earlier = [str(value), *(f"VAR {name}" for name in chain[:-1])]
            lines += [(at, f"VAR {name} = {before}") for at, name, before in zip(places, chain, earlier, strict=True)]
            asked = f"\n\nFind all variables that are assigned the value {value} in the text above.\n"
            prefix = f"The {len(chain)} variables that are assigned the value {value} are:"
            turns.append(Turn(asked, tuple(chain), prefix))
        return TRACKING_OPENING + "\n".join(text for _, text in sorted(lines)), turns, {"hops": HOPS}


def json_object(pairs: list[tuple[str, str]]) -> str:
    """A JSON object of strings, one pair a line."""
    return "{" + ",\n ".join(f'"{key}": "{value}"' for key, value in pairs) + "}"


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _letters(count: int, draw: random.Random) -> str:
    return "".join(draw.choices(string.ascii_lowercase, k=count))
