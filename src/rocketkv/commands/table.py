"""Answers under several policies, side by side."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocketkv.commands.terminal import megabytes

if TYPE_CHECKING:
    from rocketkv.hf.answer import Answer

HEADS = ("policy", "tokens kept", "cache", "of full", "first token", "decode", "answer")
ANSWER_CHARACTERS = 24


def label(answer: Answer) -> str:
    """The policy, with its budget where it has one, or the budget that it costs where that does not bind it."""
    equivalent = answer.report.equivalent_tokens[0]
    if equivalent is not None:
        return f"{answer.policy} (={equivalent:,.0f})"
    return answer.policy if answer.policy == "full" else f"{answer.policy} {answer.plan.budget_tokens}"


def table(answers: Sequence[Answer]) -> str:
    """A row for each answer. The answer comes last and is cut to the width of the terminal."""
    rows = [HEADS, *(_cells(answer) for answer in answers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS) - 1)]
    room = shutil.get_terminal_size((120, 24)).columns - sum(widths) - 2 * len(widths)
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True)]
        lines.append("  ".join([*cells, _cut(row[-1], max(room, ANSWER_CHARACTERS))]))
    return "\n".join(lines)


def _cells(answer: Answer) -> tuple[str, ...]:
    kept = sum(answer.report.kept_tokens) / len(answer.report.kept_tokens)
    rate = answer.decode_tokens_per_s
    return (
        label(answer),
        f"{kept:,.0f} of {answer.report.tokens_seen[0]:,}",
        megabytes(answer.cache_bytes),
        f"{100 * answer.report.kept_fraction:.0f} %",
        f"{answer.prefill_s:.1f} s",
        "-" if rate is None else f"{rate:.1f} tokens/s",
        " ".join(answer.text.split()),
    )


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."
