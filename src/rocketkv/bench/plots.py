"""Pictures from records: step time and tokens a second against context length. Needs matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocketkv.bench.timing import COLD_BYTES

INCHES = (7.2, 5.0)
PANELS = {"attend": ("one attention layer", "ms per step", False), "decode": ("whole model", "tokens/s", True)}


def plot_records(records: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """One PNG for each benchmark, dtype and shape or model in the records; returns what was written.

    Raises ImportError if matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for (bench, subject), lines in sorted(curves(records).items()):
        title, label, per_second = PANELS[bench]
        heights = {
            name: {at: 1e3 / ms if per_second else ms for at, ms in points.items()} for name, points in lines.items()
        }
        contexts = sorted({at for points in lines.values() for at in points})
        figure = pyplot.figure(figsize=INCHES, layout="constrained")
        figure.suptitle(f"{title}: {subject}", fontsize="medium")
        if len(contexts) == 1:
            _bars(figure, heights, f"{label}, {_tokens(contexts[0])} tokens of context")
        else:
            _lines(figure, heights, contexts, label)
        path = folder / f"{bench}-{'-'.join(subject.replace(',', '').split())}.png".replace("/", "-")
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        written.append(path)
    return written


def _lines(figure: Any, heights: dict[str, dict[int, float]], contexts: list[int], label: str) -> None:
    """A line for each row over context length; the legend, in the order of the lines' ends, stands beside them."""
    axes = figure.subplots()
    last = {name: points[max(points)] for name, points in heights.items()}
    for name in sorted(heights, key=last.__getitem__, reverse=True):
        points = heights[name]
        axes.plot(sorted(points), [points[at] for at in sorted(points)], marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens of context", ylabel=label)
    axes.set_xticks(contexts, [_tokens(at) for at in contexts])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside lower center", ncols=2, fontsize="x-small")


def _bars(figure: Any, heights: dict[str, dict[int, float]], label: str) -> None:
    """A bar for each row, where there is one context only."""
    axes = figure.subplots()
    value = {name: next(iter(points.values())) for name, points in heights.items()}
    names = sorted(value, key=value.__getitem__)
    bars = axes.barh(names, [value[name] for name in names])
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize="x-small")
    axes.set(xlabel=label)
    axes.tick_params(axis="y", labelsize="x-small")
    axes.margins(x=0.1)
    axes.grid(alpha=0.3, axis="x")


def _tokens(count: int) -> str:
    return f"{count / 1024:g}K" if count >= 1024 else f"{count:g}"


def _ways(settings: dict[str, Any]) -> list[str]:
    """How it was measured, where that is not the default."""
    cold_bytes = settings.get("cold_bytes", COLD_BYTES)
    ways = [] if cold_bytes == COLD_BYTES else [f"{cold_bytes / 1e6:g} MB between uses"]
    return ways if settings.get("interleave", True) else [*ways, "one after the other"]


def curves(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """(benchmark, subject) -> row name -> context -> median ms. A later record of the same row takes its place.

    Caches left colder or warmer, and rows in turn or one after the other, are subjects of their own.
    """
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for record in records:
        settings = record.get("settings", {})
        if record.get("bench") not in PANELS or record.get("p50_ms") is None or "context_tokens" not in settings:
            continue
        subject = ", ".join([*record["group"].split(", ")[:2], *_ways(settings)])
        curve = found.setdefault((record["bench"], subject), {}).setdefault(record["row"], {})
        curve[settings["context_tokens"]] = record["p50_ms"]
    return found
