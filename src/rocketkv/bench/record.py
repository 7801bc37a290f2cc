"""What a run found: every row beside its baseline, and as a record of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocketkv.bench.machine import Limits, describe_machine
from rocketkv.bench.timing import Row, Times
from rocketkv.records import stamp

SCHEMA = "rocketkv-bench-1"
DEFAULT_PATH = Path("records/bench.jsonl")


@dataclass(frozen=True)
class Result:
    """A row with its times. `share` is of the streaming limit; `ratio` says how many times faster than `baseline`."""

    row: Row
    times: Times | None
    share: float | None
    ratio: float | None
    baseline: str | None


def results_of(rows: Sequence[Row], times: Sequence[Times | None], limits: Limits) -> list[Result]:
    """Each row beside the fastest baseline of its group, by medians."""
    fastest: dict[str, tuple[float, str]] = {}
    for row, taken in zip(rows, times, strict=True):
        if row.baseline and taken is not None:
            candidate = (taken.p50_ms, row.name)
            fastest[row.group] = min(fastest.get(row.group, candidate), candidate)
    results = []
    for row, taken in zip(rows, times, strict=True):
        if taken is None:
            results.append(Result(row, None, None, None, None))
            continue
        rate = row.named_bytes / (taken.p50_ms * 1e-3) / 1e9
        base_ms, name = fastest.get(row.group, (None, None))
        share = rate / limits.read_gb_per_s if row.named_bytes else None
        results.append(Result(row, taken, share, None if base_ms is None else base_ms / taken.p50_ms, name))
    return results


def lines_of(bench: str, results: Sequence[Result], limits: Limits, *, seed: int) -> list[dict[str, Any]]:
    """The records of one run, as plain values."""
    shared = stamp() | {
        "schema": SCHEMA,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "bench": bench,
        "host": describe_machine(),
        "limits": asdict(limits),
        "seed": seed,
    }
    lines = []
    for result in results:
        times = result.times
        lines.append(
            shared
            | {
                "row": result.row.name,
                "group": result.row.group,
                "settings": result.row.settings,
                "skipped": result.row.skipped,
                "n": times.n if times else 0,
                "p20_ms": times.p20_ms if times else None,
                "p50_ms": times.p50_ms if times else None,
                "p80_ms": times.p80_ms if times else None,
                "named_bytes": result.row.named_bytes,
                "share_of_read_limit": result.share,
                "times_faster": result.ratio,
                "baseline": result.baseline,
                "peak_rss_bytes": peak_rss_bytes(),
            }
        )
    return lines


def peak_rss_bytes() -> int | None:
    """The most memory this process has had resident; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
