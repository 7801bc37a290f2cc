"""Pictures from records: step time and tokens a second against context length. Needs matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

INCHES = (7.2, 4.6)
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
        figure = pyplot.figure(figsize=INCHES, layout="constrained")
        axes = figure.subplots()
        for name, points in sorted(lines.items()):
            contexts = sorted(points)
            heights = [1e3 / points[at] if per_second else points[at] for at in contexts]
            axes.plot(contexts, heights, marker="o", markersize=3, label=name)
        axes.set(xscale="log", yscale="log", xlabel="tokens of context", ylabel=label, title=f"{title}: {subject}")
        axes.xaxis.set_major_formatter(lambda tokens, _: f"{tokens / 1024:g}K" if tokens >= 1024 else f"{tokens:g}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
        path = folder / f"{bench}-{'-'.join(subject.replace(',', '').split())}.png".replace("/", "-")
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        written.append(path)
    return written


def curves(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """(benchmark, subject) -> row name -> context -> median ms. A later record of the same row takes its place."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for record in records:
        settings = record.get("settings", {})
        if record.get("bench") not in PANELS or record.get("p50_ms") is None or "context_tokens" not in settings:
            continue
        subject = ", ".join(record["group"].split(", ")[:2])
        curve = found.setdefault((record["bench"], subject), {}).setdefault(record["row"], {})
        curve[settings["context_tokens"]] = record["p50_ms"]
    return found
