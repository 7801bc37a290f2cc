"""A line on standard error that moves while a sweep runs; nothing where that is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rocketkv.commands.terminal import CLEAR, REDRAW_S, duration

SHOWN = 4


class SweepProgress:
    """Prompts done, how fast they are read, time left and scores so far."""

    def __init__(self) -> None:
        self.on_terminal = sys.stderr.isatty()
        self.prompts = self.resumed = self.number = self.tokens = self.finished = 0
        self.start_s = self.drawn_s = time.perf_counter()
        self.rate: float | None = None
        self.sums: dict[str, tuple[float, int]] = {}

    def begin(self, prompts: int, done: int) -> None:
        """A sweep of `prompts`, of which `done` need nothing more."""
        self.prompts, self.resumed, self.start_s = prompts, done, time.perf_counter()
        if done and self.on_terminal:
            print(f"{done:,} of {prompts:,} prompts have all their records already", file=sys.stderr)

    def reading(self, number: int, tokens: int) -> Callable[[int, int], None] | None:
        """Prompt `number` of the sweep, of `tokens` tokens, is read next."""
        self.finished += self.tokens > 0
        self.number, self.tokens = number, tokens
        if not self.on_terminal:
            return None
        begin_s = time.perf_counter()

        def layer_read(layers_done: int, layers: int) -> None:
            elapsed_s = time.perf_counter() - begin_s
            self.rate = tokens * layers_done / layers / max(elapsed_s, 1e-9)
            self._draw(f"reading {tokens:,} tokens")

        return layer_read

    def scored(self, records: Sequence[dict[str, Any]]) -> None:
        """Records that were written."""
        for record in records:
            total, count = self.sums.get(record["policy"], (0.0, 0))
            self.sums[record["policy"]] = total + record["score"], count + 1
        if self.on_terminal:
            self._draw("answered", now=True)

    def end(self) -> None:
        """The sweep has ended: the line goes."""
        if self.on_terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def line(self, doing: str, elapsed_s: float) -> str:
        """The line after `elapsed_s` seconds."""
        parts = [f"prompt {self.number:,} of {self.prompts:,}", doing]
        if self.rate is not None:
            parts.append(f"{self.rate:,.0f} tokens/s read")
        if self.finished:
            left = self.prompts - self.resumed - self.finished
            parts.append(f"{duration(elapsed_s / self.finished * left)} left")
        means = [f"{policy} {total / count:.2f}" for policy, (total, count) in self.sums.items()]
        if means:
            parts.append("scores: " + " ".join(means[:SHOWN]) + (" ..." if len(means) > SHOWN else ""))
        return ", ".join(parts)

    def _draw(self, doing: str, *, now: bool = False) -> None:
        now_s = time.perf_counter()
        if now or now_s - self.drawn_s >= REDRAW_S:
            self.drawn_s = now_s
            print(CLEAR + self.line(doing, now_s - self.start_s), end="", file=sys.stderr, flush=True)
