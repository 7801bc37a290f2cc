"""A Markdown report of sweeps, with its plots beside it. Records that were not read the same way are kept apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rocketkv.evals.result_plots import (
    SELECTORS_ALONE,
    plot_budgets,
    plot_by_length,
    plot_depths,
    plot_splits,
    plot_stored,
    plot_tasks,
    splits_of,
)
from rocketkv.evals.tables import (
    FULL,
    LEVEL,
    RESAMPLES,
    Record,
    briefly_named,
    leads,
    leads_markdown,
    lines_of,
    markdown,
    unreached,
)

REPORT_NAME = "report.md"
FEW = 10
READ_ALIKE = ("model", "dtype", "weights", "protocol", "turns", "planned_new_tokens")
PROTOCOLS = {
    "inside": "the question stands inside the compressed prompt; the whole prompt is read once for all policies",
    "after": "the context is compressed before the question is read; only the context is read once for all policies",
}
MODES = {
    "golden": "later turns see the references as earlier answers",
    "own": "later turns see what the policy itself answered",
}


def write_report(records: Sequence[Record], folder: Path, *, extra: Sequence[Path] = ()) -> Path:
    """Write report.md and its PNGs into `folder`, made if need be, and return its path.

    `extra` are further PNGs in that folder. Raises PlotsMissingError where nothing can be drawn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sections: dict[tuple[Any, ...], list[Record]] = {}
    for record in briefly_named(records):
        sections.setdefault(tuple(record[name] for name in READ_ALIKE), []).append(record)
    text = ["# Scores under compressed KV caches"]
    for number, part in enumerate(sections.values(), 1):
        prefix = f"{number}-" if len(sections) > 1 else ""
        text += _section(part, folder, prefix)
    text += [f"![{path.stem}]({path.name})" for path in extra]
    path = folder / REPORT_NAME
    path.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    return path


def _section(records: Sequence[Record], folder: Path, prefix: str) -> list[str]:
    first = records[0]
    text = [f"## {_called(first['model'])}, question {first['protocol']}"]
    text.append("\n".join(f"- {line}" for line in _origins(records)))
    lines = lines_of(records)
    for name, plot in plots_of(records).items():
        plot(folder / f"{prefix}{name}.png")
        text.append(f"![{name}]({prefix}{name}.png)")
    tasks = {line.task for line in lines}
    if len(tasks) > 1:
        text += [f"### Mean over {len(tasks)} tasks", markdown(lines_of(records, by_task=False))]
    if ahead := leads(records):
        text += ["### RocketKV minus the others at the same budget, paired by example", leads_markdown(ahead)]
    text += ["### Every task", markdown(lines)]
    text.append("\n".join(f"- {note}" for note in _notes(records)))
    return text


def plots_of(records: Sequence[Record]) -> dict[str, Callable[[Path], None]]:
    """What these records are enough for: a name and what draws it to a path."""
    plots: dict[str, Callable[[Path], None]] = {}
    budgets = sorted({r["budget_tokens"] for r in records if r["budget_tokens"] is not None})
    lengths = sorted({r["max_tokens"] for r in records})
    names = {r["policy"] for r in records}
    if budgets:
        plots["score-by-budget"] = lambda path: plot_budgets(records, path)
    for length in lengths:
        if budgets and len({r["task"] for r in records if r["max_tokens"] == length}) > 1:
            plots[f"tasks-at-{length}"] = lambda path, length=length: plot_tasks(records, length, path)  # type: ignore[misc]
    if len(names.intersection(SELECTORS_ALONE)) > 1:
        plots["selectors-alone"] = lambda path: plot_budgets(records, path, only=SELECTORS_ALONE)
    needles = [r for r in records if "depth" in r["meta"]]
    for budget in budgets if needles else []:
        plots[f"needle-at-{budget}"] = lambda path, budget=budget: plot_depths(needles, budget, path)  # type: ignore[misc]
    if budgets and len(lengths) > 1:
        plots["score-by-length"] = lambda path: plot_by_length(records, path)
        plots["stored-by-length"] = lambda path: plot_stored(records, path)
    ruler = [r for r in records if r["task"].startswith("ruler")]
    if budgets and len({r["max_tokens"] for r in ruler}) > 1 and len(ruler) < len(records):
        plots["ruler-by-length"] = lambda path: plot_by_length(ruler, path)
    if len({str(r["policy_options"].get("split")) for r in splits_of(records)}) > 1:
        plots["split"] = lambda path: plot_splits(records, path)
    return plots


def _called(model: str) -> str:
    """A model's name: of a local folder or file, without the place it lies in."""
    return Path(model).name if Path(model).is_absolute() else model


def _origins(records: Sequence[Record]) -> list[str]:
    """Where the numbers come from, in lines."""
    first = records[0]
    commits = sorted({f"{(r['commit'] or 'unknown')[:12]}{' with changes' if r['dirty'] else ''}" for r in records})
    hosts = sorted({f"{r['host']['cpu']}, {r['host']['cores']} cores" for r in records})
    versions = sorted({", ".join(f"{name} {v}" for name, v in r["versions"].items() if v) for r in records})
    seeds = sorted({r["seed"] for r in records})
    lines = [
        f"model {_called(first['model'])} in {first['dtype']}"
        + ("" if first["weights"] == "float" else f", weights in {first['weights']}"),
        f"protocol {first['protocol']}: {PROTOCOLS[first['protocol']]}",
    ]
    if first["turns"]:
        lines.append(f"turns {first['turns']}: {MODES[first['turns']]}")
    lines += [
        f"seed {', '.join(map(str, seeds))}; planned new tokens {first['planned_new_tokens']}; greedy answers",
        f"commit {', '.join(commits)}",
        f"host {'; '.join(hosts)}",
        f"versions {'; '.join(versions)}",
    ]
    return lines


def _notes(records: Sequence[Record]) -> list[str]:
    """How to read the tables, and what in them should make one wonder."""
    lines = lines_of(records)
    notes = [
        f"Intervals are {100 * LEVEL:.0f} % percentile bootstrap intervals of {RESAMPLES:,} resamples over examples; "
        "differences are paired by example.",
    ]
    if min(line.score.n for line in lines) < FEW:
        notes.append(f"Some rows have fewer than {FEW} examples: read their intervals, not their means.")
    if not any(line.policy == FULL for line in lines):
        notes.append("Full-KV was not run, so that there is no difference to it.")
    for line in unreached(lines):
        assert line.difference is not None
        notes.append(
            f"{line.policy} {line.budget_tokens or ''} scores above Full-KV on {line.task} at {line.max_tokens:,} "
            f"tokens, by {100 * line.difference.mean:.1f} points: look at its answers before believing it."
        )
    return notes
