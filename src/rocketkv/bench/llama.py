"""llama.cpp beside us, where it is installed: measured to a length, and carried on along its straight line."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rocketkv.bench.timing import Row, Times, times_of

MEASURED_TOKENS = 12_288
DEPTHS = 4
STEPS = 8
BATCH_TOKENS = 512


def llama_row(gguf: Path, context_tokens: int, group: str, *, threads: int, seed: int) -> tuple[Row, Times | None]:
    """One decode step of llama.cpp with its full cache and flash attention at a context of `context_tokens`.

    Up to MEASURED_TOKENS it is measured there; beyond, the least-squares line through its medians at DEPTHS lengths
    is carried on, and the row says so. Skipped, with the reason, where `llama_cpp` is not installed.
    """
    name = f"llama.cpp, {gguf.name}, full cache"
    if not _installed():
        return Row(name, group, [], skipped="llama_cpp is not installed (pip install llama-cpp-python)"), None
    measured = min(context_tokens, MEASURED_TOKENS)
    depths = [measured * (place + 1) // DEPTHS for place in range(DEPTHS)]
    found = _times_at(gguf, depths, threads, seed)
    settings: dict[str, Any] = {
        "gguf": gguf.name, "context_tokens": context_tokens, "threads": threads, "measured_tokens": depths,
        "measured_p50_ms": [times.p50_ms for times in found], "extrapolated": context_tokens > measured,
    }  # fmt: skip
    times = found[-1]
    if context_tokens > measured:
        base, slope = line_through(depths, [times.p50_ms for times in found])
        median = base + slope * context_tokens
        spread = [times.p20_ms / times.p50_ms, times.p80_ms / times.p50_ms]
        times = Times(times.n, median * spread[0], median, median * spread[1])
        settings["shown"] = f"extrapolated from {measured:,} tokens"
    return Row(name, group, [], settings=settings), times


def line_through(xs: list[int], ys: list[float]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return mean_y - slope * mean_x, slope


def _installed() -> bool:
    try:
        return find_spec("llama_cpp") is not None
    except ValueError:  # a module that was put out of reach
        return False


def _times_at(gguf: Path, depths: list[int], threads: int, seed: int) -> list[Times]:
    with _plain_weights():
        model = import_module("llama_cpp").Llama(
            str(gguf), n_ctx=depths[-1] + STEPS * len(depths) + 64, n_batch=BATCH_TOKENS, n_threads=threads,
            n_threads_batch=threads, flash_attn=True, verbose=False, seed=seed,
        )  # fmt: skip
    draw, found = random.Random(seed), []
    for depth in depths:
        while model.n_tokens < depth:
            count = min(BATCH_TOKENS, depth - model.n_tokens)
            model.eval([draw.randrange(model.n_vocab()) for _ in range(count)])
        samples = []
        for _ in range(STEPS):
            token = draw.randrange(model.n_vocab())
            start = time.perf_counter()
            model.eval([token])
            samples.append(time.perf_counter() - start)
        found.append(times_of(samples))
    return found


@contextmanager
def _plain_weights() -> Iterator[None]:
    """Load weights as the file holds them, not rearranged for matrix products.

    Version 0.3.36 crashes while it reads a prompt with weights rearranged for AMX. One token after another is not
    slower without: 93 ms against 99 at 4,096 tokens on two cores.
    """
    library: Any = import_module("llama_cpp.llama_cpp")
    defaults = library.llama_model_default_params

    def plain() -> Any:
        found = defaults()
        found.use_extra_bufts = False
        return found

    library.llama_model_default_params = plain
    try:
        yield
    finally:
        library.llama_model_default_params = defaults
