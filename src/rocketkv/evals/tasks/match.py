"""Scores by substrings, as RULER has them (Hsieh et al., COLM 2024, arXiv:2404.06654)."""

from __future__ import annotations

import re
from collections.abc import Sequence


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """The share of the references that occur in the prediction, whatever their case. Raises ValueError for none."""
    return sum(_hits(prediction, references)) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """1 if any of the references occurs in the prediction, whatever its case. Raises ValueError for none."""
    return float(any(_hits(prediction, references)))


def without_separators(text: str) -> str:
    """The text without commas between digits, so that 1,234,567 is the number 1234567."""
    return re.sub(r"(?<=\d),(?=\d)", "", text)


def _hits(prediction: str, references: Sequence[str]) -> list[bool]:
    if not references:
        raise ValueError("an example without references has no score: give at least one")
    return [reference.lower() in prediction.lower() for reference in references]
