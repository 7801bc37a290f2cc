"""What is told on standard error beside the result: notes, and a line that moves while a prompt is read."""

from __future__ import annotations

import sys
import time

CLEAR = "\r\033[K"
REDRAW_S = 0.2


class Teller:
    """Speaks on standard error. `quiet`: to a terminal only, for programs that want the result alone."""

    def __init__(self, *, quiet: bool) -> None:
        self.on_terminal = sys.stderr.isatty()
        self.silent = quiet and not self.on_terminal

    def note(self, line: str) -> None:
        """One line that stays."""
        if not self.silent:
            print(line, file=sys.stderr, flush=True)

    def reading(self, prompt_tokens: int) -> PromptProgress | None:
        """A moving line for one prompt; None where standard error is not a terminal."""
        return PromptProgress(prompt_tokens) if self.on_terminal else None


class PromptProgress:
    """Tokens done, rate and time left of one prompt. A layer counts as its share of the tokens."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.start_s = time.perf_counter()
        self.drawn_s = 0.0

    def __call__(self, layers_done: int, layers: int) -> None:
        now_s = time.perf_counter()
        if layers_done == layers:
            print(CLEAR, end="", file=sys.stderr, flush=True)
        elif now_s - self.drawn_s >= REDRAW_S:
            self.drawn_s = now_s
            print(
                CLEAR + self.line(layers_done, layers, now_s - self.start_s),
                end="",
                file=sys.stderr,
                flush=True,
            )

    def line(self, layers_done: int, layers: int, elapsed_s: float) -> str:
        """The line after `elapsed_s` seconds."""
        done = self.prompt_tokens * layers_done / layers
        left_s = elapsed_s * (layers - layers_done) / layers_done
        return (
            f"reading the prompt: {done:,.0f} of {self.prompt_tokens:,} tokens, "
            f"{done / max(elapsed_s, 1e-9):,.0f} tokens/s, {duration(left_s)} left"
        )


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def megabytes(count_bytes: float) -> str:
    """Bytes in decimal megabytes, or gigabytes from one on."""
    return f"{count_bytes / 1e9:.2f} GB" if count_bytes >= 1e9 else f"{count_bytes / 1e6:.1f} MB"
