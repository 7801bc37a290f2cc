"""Scores in tables: mean, n, a bootstrap interval, and the paired difference to Full-KV, from records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
FULL = "full"
Record = dict[str, Any]


@dataclass(frozen=True)
class Interval:
    """A mean of `n` values and its bootstrap interval; without width where n is 1 or all values are the same."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Line:
    """One policy at one budget on one task: scores from 0 to 1, and score minus Full-KV's on the same examples.

    The turns of one conversation are one value, their mean, since they are not independent: n counts conversations.
    `difference` is None for Full-KV itself, and where Full-KV has no record of any of the rows.
    """

    task: str
    max_tokens: int
    policy: str
    budget_tokens: int | None
    score: Interval
    difference: Interval | None


def interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """The mean with a percentile bootstrap interval of LEVEL; the same values and seed give the same interval.

    Raises ValueError without values.
    """
    if not len(values):
        raise ValueError("no values: an interval needs at least one")
    array = np.asarray(values, dtype=np.float64)
    draw = np.random.default_rng(seed)
    means = array[draw.integers(0, len(array), (RESAMPLES, len(array)))].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(array.mean()), float(low), float(high), len(array))


def lines_of(records: Iterable[Record], *, by_task: bool = True) -> list[Line]:
    """A line for every task, length, policy and budget, in the order in which they come in the records.

    Rows of Full-KV and of others are paired by example and turn. Without `by_task` all tasks of a length are one, each
    example counting the same.
    """
    groups: dict[tuple[str, int, str, int | None], list[Record]] = {}
    full: dict[tuple[Any, ...], float] = {}
    for record in records:
        task = record["task"] if by_task else "all tasks"
        key = (task, record["max_tokens"], record["policy"], record["budget_tokens"])
        groups.setdefault(key, []).append(record)
        if record["policy"] == FULL:
            full[_row(record)] = record["score"]
    lines = []
    for (task, tokens, policy, budget), rows in groups.items():
        scores = _by_example((row, row["score"]) for row in rows)
        pairs = _by_example((row, row["score"] - full[_row(row)]) for row in rows if _row(row) in full)
        difference = interval(pairs) if pairs and policy != FULL else None
        lines.append(Line(task, tokens, policy, budget, interval(scores), difference))
    return lines


def briefly_named(records: Sequence[Record]) -> list[Record]:
    """The records, their policies named without the folders of files among the options, where that tells them apart."""
    brief = {spec: _brief(spec) for spec in dict.fromkeys(record["policy"] for record in records)}
    times = Counter(brief.values())
    return [
        record | {"policy": brief[record["policy"]] if times[brief[record["policy"]]] == 1 else record["policy"]}
        for record in records
    ]


def _brief(spec: str) -> str:
    name, *settings = spec.split(":")
    parts = (setting.partition("=") for setting in settings)
    return ":".join((name, *(f"{key}={PurePath(value).name}" for key, _, value in parts)))


def leads(records: Iterable[Record], leader: str = "rocketkv") -> dict[tuple[int, int, str], Interval]:
    """(length, budget, other policy) -> `leader` minus the other at the same budget, over the rows that both answered.

    All tasks of a length are one, each example counting the same; policies without a budget are left out.
    """
    scores: dict[tuple[int, int, str], list[Record]] = {}
    for record in records:
        if record["budget_tokens"] is not None:
            scores.setdefault((record["max_tokens"], record["budget_tokens"], record["policy"]), []).append(record)
    found = {}
    for (tokens, budget, policy), rows in scores.items():
        mine = {_row(row): row["score"] for row in scores.get((tokens, budget, leader), [])}
        pairs = _by_example((row, mine[_row(row)] - row["score"]) for row in rows if _row(row) in mine)
        if policy != leader and pairs:
            found[tokens, budget, policy] = interval(pairs)
    return found


def leads_markdown(found: dict[tuple[int, int, str], Interval]) -> str:
    """A Markdown table of `leads`: a row for each length and policy, a column for each budget; points of 100."""
    budgets = sorted({budget for _, budget, _ in found})
    head = ["length (tokens)", "minus", *(f"at {budget:,}" for budget in budgets)]
    rows = [head, ["--:", "---", *("--:" for _ in budgets)]]
    for tokens, policy in dict.fromkeys((tokens, policy) for tokens, _, policy in found):
        cells = (found.get((tokens, budget, policy)) for budget in budgets)
        rows.append([f"{tokens:,}", policy, *("" if gap is None else _gap(gap) for gap in cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _gap(gap: Interval) -> str:
    """A difference with its interval and n, in points of 100."""
    return f"{100 * gap.mean:+.1f} ({100 * gap.low:+.1f} to {100 * gap.high:+.1f}), n {gap.n}"


def unreached(lines: Iterable[Line]) -> list[Line]:
    """Lines that beat Full-KV by an interval that leaves out 0: a full cache that scores below is worth a look."""
    return [line for line in lines if line.difference is not None and line.difference.low > 0]


def markdown(lines: Sequence[Line]) -> str:
    """A Markdown table; scores and differences in points of 100."""
    head = ["task", "length (tokens)", "policy", "budget (tokens)", "score", "95 % interval", "n", "minus Full-KV"]
    rows = [head, ["---", "--:", "---", "--:", "--:", "--:", "--:", "--:"]]
    for line in lines:
        score, gap = line.score, line.difference
        beside = "" if gap is None else f"{100 * gap.mean:+.1f} ({100 * gap.low:+.1f} to {100 * gap.high:+.1f})"
        if gap is not None and gap.n != score.n:
            beside += f", n {gap.n}"
        budget = "-" if line.budget_tokens is None else f"{line.budget_tokens:,}"
        between = f"{100 * score.low:.1f} to {100 * score.high:.1f}"
        rows.append([line.task, f"{line.max_tokens:,}", line.policy, budget, f"{100 * score.mean:.1f}", between,
                     str(score.n), beside])  # fmt: skip
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _by_example(values: Iterable[tuple[Record, float]]) -> list[float]:
    """The mean of each example's values, in the order of the examples.

    Rows of two files may have one name: a question's prompt tells them apart. Turns of a conversation have one each.
    """
    found: dict[tuple[str, Any], list[float]] = {}
    for record, value in values:
        prompt = record.get("prompt_sha256") if record.get("turns") is None else None
        found.setdefault((record["example"], prompt), []).append(value)
    return [sum(each) / len(each) for each in found.values()]


def _row(record: Record) -> tuple[Any, ...]:
    """What is the same for a row under all policies."""
    names = ("model", "dtype", "weights", "example", "prompt_sha256", "turn", "protocol", "turns")
    return tuple(record.get(name) for name in names)
