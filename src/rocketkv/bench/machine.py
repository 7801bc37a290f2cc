"""The machine a benchmark runs on: what it is, and the two limits that every row is a share of."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rocketkv.records import stamp

READ_BYTES, QUICK_READ_BYTES = 1 << 29, 1 << 26
PRODUCT_SIDE, QUICK_PRODUCT_SIDE = 1024, 256


@dataclass(frozen=True)
class Limits:
    """Gigabytes (1e9) a second that all threads together read, and GFLOP/s of a square matrix product by dtype."""

    read_gb_per_s: float
    product_gflop_per_s: dict[str, float]


def measure_limits(*, quick: bool = False) -> Limits:
    """The best of several ways and repeats: other programs can only make a measurement slower."""
    return Limits(_read_rate(QUICK_READ_BYTES if quick else READ_BYTES, 3 if quick else 8), _product_rates(quick))


def _read_rate(size_bytes: int, repeats: int) -> float:
    numbers = torch.ones(size_bytes // 4)
    half = numbers.numel() // 2
    square = numbers[: half // 1024 * 1024].view(-1, 1024)
    ways: list[tuple[Callable[[], Any], int]] = [
        (numbers.sum, 4 * numbers.numel()),
        (numbers.amax, 4 * numbers.numel()),
        (lambda: torch.dot(numbers[:half], numbers[half : 2 * half]), 8 * half),
        (lambda: square @ numbers[:1024], 4 * square.numel()),
    ]
    return max(count / _best_s(read, repeats) for read, count in ways) / 1e9


def _product_rates(quick: bool) -> dict[str, float]:
    side, rates = QUICK_PRODUCT_SIDE if quick else PRODUCT_SIDE, {}
    for name in ("float32", "bfloat16"):
        square = torch.randn(side, side).to(getattr(torch, name))
        rates[name] = 2 * side**3 / _best_s(partial(torch.matmul, square, square), 3) / 1e9
    return rates


def _best_s(work: Callable[[], Any], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def describe_machine() -> dict[str, Any]:
    """Processor, cores, threads in use, what PyTorch runs, the last-level cache in bytes (0: unknown)."""
    host: dict[str, Any] = stamp()["host"]
    return host | {
        "threads": torch.get_num_threads(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cache_bytes": _last_cache_bytes(),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def header(machine: dict[str, Any], limits: Limits, cold_bytes: float) -> list[str]:
    """The machine and its limits in lines for people."""
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in limits.product_gflop_per_s.items())
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, PyTorch runs {machine['isa']}",
        f"limits: streaming read {limits.read_gb_per_s:.1f} GB/s, matrix product {rates} GFLOP/s",
    ]
    if machine["cache_bytes"] > cold_bytes:
        lines.append(
            f"note: the last-level cache holds {machine['cache_bytes'] / 1e6:,.0f} MB, more than the "
            f"{cold_bytes / 1e6:,.0f} MB touched between two uses: caches may be warm; raise --cold-mb"
        )
    load = machine["load_1min"]
    if load is not None and load > 0.5:
        lines.append(f"note: other programs are running (load {load}): trust ratios, not times")
    return lines


def _last_cache_bytes() -> int:
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1))
    return max(sizes)
