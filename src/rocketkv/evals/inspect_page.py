"""An inspected answer as one HTML page that needs nothing but itself: the template's files with the data put in."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rocketkv.evals.inspection import Inspection
from rocketkv.evals.verdict import Verdict

TEMPLATE = Path(__file__).parent / "page"
UNSAFE: dict[str, str | int | None] = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
"""What could end a script element, written as JSON writes any character."""
ATTENTION_LEVELS = 255


@dataclass(frozen=True)
class PageText:
    """What the page says beside the arrays.

    `pieces` are the texts of all prompt and answer tokens, `full_pieces` those of the full cache's answer (None: not
    run), `marked` the token ranges that hold what was expected, `facts` names and values of the run.
    """

    title: str
    pieces: Sequence[str]
    special: Sequence[bool]
    verdict: Verdict
    full_pieces: Sequence[str] | None = None
    marked: Sequence[tuple[int, int]] = ()
    facts: Sequence[tuple[str, str]] = field(default_factory=tuple)


def write_page(found: Inspection, text: PageText, path: Path) -> None:
    """Write the page to `path`. Raises OSError if that cannot be done."""
    path.write_text(page(found, text), encoding="utf-8")


def page(found: Inspection, text: PageText) -> str:
    """The whole page: no other file, no address and no request. All text is data that the script writes as text."""
    data = json.dumps(page_data(found, text), ensure_ascii=False, separators=(",", ":"))
    parts = {
        "title": html.escape(text.title),
        "style": _file("page.css"),
        "script": _file("counts.js") + _file("page.js"),
        "data": data.translate(str.maketrans(UNSAFE)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _file("page.html"))


def page_data(found: Inspection, text: PageText) -> dict[str, Any]:
    """Plain values for the script. Bits and levels are deflated and in base64.

    `kept` [L, G, ceil(P / 8)] and `reads` [N - 1, L, H, bytes] are bits, the lowest first; `attention` [L, G, P] are
    square roots in levels of 0 to 255.
    """
    everything = found.reads_everything()
    return {
        "title": text.title,
        "facts": [list(fact) for fact in text.facts],
        "verdict": {"label": text.verdict.label, "tone": text.verdict.tone, "sentences": text.verdict.sentences},
        "pieces": list(text.pieces),
        "special": [number for number, special in enumerate(text.special) if special],
        "ids": [*found.prompt_ids, *found.answer_ids],
        "promptTokens": found.prompt_tokens,
        "layers": found.layers,
        "heads": found.kept.shape[1],
        "readHeads": found.reads.shape[2],
        "readBytes": found.reads.shape[3],
        "keepsAll": found.kept.all(-1).tolist(),
        "readsEverything": everything.tolist(),
        "marked": [list(span) for span in text.marked],
        "full": None if found.full_ids is None else {"pieces": list(text.full_pieces or ()), "ids": found.full_ids},
        "kept": packed(np.packbits(found.kept, axis=-1, bitorder="little")),
        "reads": packed(found.reads),
        "attention": None if found.attention is None else packed(levels(found.attention)),
    }


def levels(attention: np.ndarray) -> np.ndarray:
    """Shares as bytes: the square root, which leaves room for small ones, in 255 steps."""
    return np.round(ATTENTION_LEVELS * np.sqrt(np.clip(attention, 0, 1))).astype(np.uint8)


def packed(array: np.ndarray) -> str:
    """The bytes of an array, deflated (zlib), in base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode("ascii")


def _file(name: str) -> str:
    return (TEMPLATE / name).read_text(encoding="utf-8")
