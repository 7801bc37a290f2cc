"""Timing: rows take turns, every call meets cold caches, and what is told is the median with its spread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

COLD_BYTES = 64_000_000
TURN_S = 0.02
"""How long a row keeps its turn: short calls are repeated, so that all rows get comparable numbers of them."""
MOST_SAMPLES = 1000


@dataclass(frozen=True)
class Row:
    """One thing to time. `calls` do the same work on memory of their own; they are used in turn.

    `named_bytes` is what a call has to read by the budget (or by the length, where everything is read). `group` is
    whom it is compared with: the fastest row of its group with `baseline` set. `skipped` says why there are no calls.
    """

    name: str
    group: str
    calls: Sequence[Callable[[], Any]]
    named_bytes: float = 0.0
    baseline: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None


@dataclass(frozen=True)
class Times:
    """Milliseconds of `n` calls, by percentile."""

    n: int
    p20_ms: float
    p50_ms: float
    p80_ms: float


def copies_needed(touched_bytes: float, cold_bytes: float = COLD_BYTES) -> int:
    """How many caches to use in turn, so that `cold_bytes` are touched between two uses of one."""
    return 1 if touched_bytes >= cold_bytes else math.ceil(cold_bytes / max(touched_bytes, 1.0)) + 1


def measure(
    rows: Sequence[Row],
    *,
    seconds: float,
    least: int,
    interleave: bool = True,
    clock: Callable[[], float] | None = None,
) -> list[Times | None]:
    """The times of every row, None for a skipped one.

    Args:
        seconds: for each row; a row whose calls are longer still gets `least` of them.
        interleave: rows take turns of about 20 ms, so that a disturbance meets all; otherwise one after the other.
    """
    clock = clock or time.perf_counter
    runs = [_Run(row, seconds, least, clock) for row in rows]
    active = [run for run in runs if not row_is_skipped(run.row)]
    for run in active:
        run.row.calls[0]()  # compiles and loads what the first call does
    if interleave:
        while active:
            for run in active:
                run.turn()
            active = [run for run in active if not run.done()]
    else:
        for run in active:
            while not run.done():
                run.turn()
    return [None if row_is_skipped(run.row) else times_of(run.samples_s) for run in runs]


def row_is_skipped(row: Row) -> bool:
    """Whether a row has nothing to time."""
    return row.skipped is not None


def times_of(samples_s: Sequence[float]) -> Times:
    """Percentiles of some durations, each a duration that really occurred."""
    ordered = sorted(samples_s)

    def at(share: float) -> float:
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Times(len(ordered), at(0.2), at(0.5), at(0.8))


class _Run:
    def __init__(self, row: Row, seconds: float, least: int, clock: Callable[[], float]) -> None:
        self.row, self.seconds, self.least, self.clock = row, seconds, least, clock
        self.samples_s: list[float] = []
        self.spent_s = 0.0
        self.place = 1 % max(len(row.calls), 1)

    def done(self) -> bool:
        if len(self.samples_s) >= MOST_SAMPLES:
            return True
        return len(self.samples_s) >= self.least and self.spent_s >= self.seconds

    def turn(self) -> None:
        turn_s = 0.0
        while turn_s < TURN_S and len(self.samples_s) < MOST_SAMPLES:
            call = self.row.calls[self.place]
            self.place = (self.place + 1) % len(self.row.calls)
            start = self.clock()
            call()
            elapsed = self.clock() - start
            self.samples_s.append(elapsed)
            turn_s += elapsed
            self.spent_s += elapsed
