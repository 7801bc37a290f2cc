"""The text of each token, and where in a text a wanted one stands."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

INCOMPLETE = "\ufffd"
"""What a decoder writes for the bytes of a character that is not complete yet."""


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each of `ids`, special tokens included; joined, the text of all of them.

    A token that ends within a character has no text; the character belongs to the token that completes it.
    """

    def decoded(start: int, stop: int) -> str:
        return str(tokenizer.decode(ids[start:stop], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    pieces: list[str] = []
    # Each text is decoded behind the one before it: some decoders drop the space in front of what they begin with.
    start = done = 0
    for stop in range(1, len(ids) + 1):
        text = decoded(start, stop)
        if text.endswith(INCOMPLETE) and stop < len(ids):
            pieces.append("")
            continue
        pieces.append(text[len(decoded(start, done)) :])
        start, done = done, stop
    return pieces


def wanted(text: str) -> re.Pattern[str]:
    """A pattern that finds `text` whatever its case, its white space and the commas between its digits.

    A number or a word is not found within a longer one. Raises ValueError for a text without a character.
    """
    words = text.split()
    if not words:
        raise ValueError("the wanted text is empty: give words that the answer should hold")
    pattern = r"\s+".join(",?".join(map(re.escape, re.split(r"(?<=\d)(?=\d)", word))) for word in words)
    before, after = (_edge(character) for character in (words[0][0], words[-1][-1]))
    return re.compile((f"(?<!{before})" if before else "") + pattern + (f"(?!{after})" if after else ""), re.IGNORECASE)


def places(pieces: Sequence[str], pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """Which tokens, from the first to behind the last, hold each match of `pattern` in the joined `pieces`."""
    ends = list(accumulate(map(len, pieces)))
    found = []
    for match in pattern.finditer("".join(pieces)):
        first, last = bisect_right(ends, match.start()), bisect_right(ends, match.end() - 1)
        while first > 0 and pieces[first - 1] == "":
            first -= 1
        found.append((first, last + 1))
    return found


def _edge(character: str) -> str:
    """What may not stand beside an edge. Words of scripts that write no spaces have no edge to see."""
    if character.isdigit():
        return r"\d"
    return "[0-9A-Za-z]" if character.isascii() and character.isalpha() else ""
