"""Pictures of scores: against budget, by length and depth, by split; and of what is stored. From records alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rocketkv.evals.curves import COLOURS, draw_curves, draw_legend, draw_line, label_outer, whole_ticks
from rocketkv.evals.plots import save_figure
from rocketkv.evals.tables import FULL, Interval, Line, Record, interval, lines_of

SELECTORS_ALONE = ("hsa", "quest", "sparq")
DODGE = 0.018
"""Shift of one policy's points from the next, as a share of their place, so that they do not hide one another."""


def plot_budgets(records: Sequence[Record], path: Path, *, only: Sequence[str] | None = None) -> None:
    """Score against budget: a panel for every length, a line a policy with its interval, Full-KV across.

    `only`: names of policies to show beside Full-KV. Tasks count by their examples.
    """
    lines = [line for line in lines_of(records, by_task=False) if only is None or line.policy in (*only, FULL)]
    lengths = sorted({line.max_tokens for line in lines})
    policies = _policies(lines)

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
        for axis, length in zip(axes, lengths, strict=True):
            mine = [line for line in lines if line.max_tokens == length]
            draw_curves(
                axis, policies, {(line.policy, line.budget_tokens or 0): line.score for line in mine}, dodge=DODGE
            )
            for line in mine:
                if line.policy == FULL:
                    axis.axhline(100 * line.score.mean, color="black", ls=":", lw=1.2, label="full")
            axis.set_xscale("log", base=2)
            whole_ticks(axis, [line.budget_tokens for line in mine if line.budget_tokens])
            axis.set(xlabel="budget (tokens per KV head and step)", ylim=(-2, 102))
            axis.set_title(f"{length:,} tokens, {_count(line.score for line in mine)}", fontsize=9)
        axes[0].set_ylabel("score (points of 100)")
        figure.suptitle(_tasks(records), fontsize=10)
        draw_legend(figure, axes)

    save_figure(path, (max(6.4, 4.4 * len(lengths)), 5.0), draw)


def plot_tasks(records: Sequence[Record], max_tokens: int, path: Path) -> None:
    """Score against budget on every task alone, at one length; a panel a task, without intervals."""
    lines = [line for line in lines_of(records) if line.max_tokens == max_tokens]
    tasks, policies = list(dict.fromkeys(line.task for line in lines)), _policies(lines)
    columns = min(4, len(tasks))
    rows = math.ceil(len(tasks) / columns)

    def draw(figure: Any) -> None:
        axes = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
        for axis, task in zip(axes, tasks, strict=False):
            mine = [line for line in lines if line.task == task]
            scores = {(line.policy, line.budget_tokens or 0): _bare(line.score) for line in mine}
            draw_curves(axis, policies, scores, dodge=0.04)
            for line in mine:
                if line.policy == FULL:
                    axis.axhline(100 * line.score.mean, color="black", ls=":", lw=1.2, label="full")
            axis.set_xscale("log", base=2)
            whole_ticks(axis, [line.budget_tokens for line in mine if line.budget_tokens])
            axis.set(ylim=(-4, 104))
            axis.set_title(f"{task}, {_count(line.score for line in mine)}", fontsize=8)
        for axis in axes[len(tasks) :]:
            axis.set_visible(False)
        for place, axis in enumerate(axes[: len(tasks)]):
            label_outer(axis, place, len(tasks), columns, "budget (tokens)", "score (points of 100)")
        figure.suptitle(f"{max_tokens:,} tokens of prompt and answer", fontsize=10)
        draw_legend(figure, axes[: len(tasks)])

    save_figure(path, (3.0 * columns + 0.6, 2.4 * rows + 1.4), draw)


def plot_by_length(records: Sequence[Record], path: Path) -> None:
    """Score against length: a panel for every budget, a line a policy."""
    lines = lines_of(records, by_task=False)
    found = {(line.policy, line.budget_tokens, line.max_tokens): line.score for line in lines}
    _by_length(found, f"{_tasks(records)}, {_count(found.values())}", "score (points of 100)", path, (-2, 102), 100)


def plot_stored(records: Sequence[Record], path: Path) -> None:
    """Tokens stored per KV head when the answer begins, against tokens of the prompt: a panel for every budget."""
    groups: dict[tuple[str, int | None, int], list[float]] = {}
    for record in records:
        key = (record["policy"], record["budget_tokens"], record["max_tokens"])
        groups.setdefault(key, []).append(record["kept_tokens"])
    found = {key: _bare(interval(values)) for key, values in groups.items()}
    label = "tokens stored per KV head (mean)"
    _by_length(found, "what is held when the answer begins, bounds not counted", label, path, None, 1)


def plot_depths(records: Sequence[Record], budget_tokens: int, path: Path) -> None:
    """Needle heatmaps at one budget: a panel a policy, Full-KV first; length across, depth down."""
    mine = [r for r in records if r["budget_tokens"] in (None, budget_tokens) and "depth" in r["meta"]]
    policies = sorted({r["policy"]: None for r in mine}, key=lambda policy: policy != FULL)
    lengths = sorted({r["max_tokens"] for r in mine})
    depths = sorted({round(r["meta"]["depth"], 4) for r in mine})
    columns = min(4, len(policies))
    rows = math.ceil(len(policies) / columns)
    cells: dict[tuple[str, int, float], list[float]] = {}
    for r in mine:
        cells.setdefault((r["policy"], r["max_tokens"], round(r["meta"]["depth"], 4)), []).append(r["score"])
    n = sorted({len(scores) for scores in cells.values()})

    def draw(figure: Any) -> None:
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for axis, policy in zip(axes, policies, strict=False):
            scores = [[cells.get((policy, length, depth), [math.nan]) for length in lengths] for depth in depths]
            means = np.array([[100 * sum(cell) / len(cell) for cell in row] for row in scores])
            image = axis.imshow(means, vmin=0, vmax=100, cmap="viridis", aspect="auto")
            axis.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45, fontsize=7)
            axis.set_yticks(range(len(depths)), [f"{100 * depth:.0f} %" for depth in depths], fontsize=7)
            mean = np.nanmean(means)
            axis.set_title(f"{policy}: mean {mean:.0f}", fontsize=9)
        for axis in axes[len(policies) :]:
            axis.set_visible(False)
        figure.colorbar(image, ax=list(axes[: len(policies)]), label="score (points of 100)", shrink=0.8)
        for place, axis in enumerate(axes[: len(policies)]):
            label_outer(axis, place, len(policies), columns, "length (tokens)", "depth of the needle")
        figure.suptitle(f"budget {budget_tokens:,} tokens, n = {_span(n)} a cell", fontsize=10)

    save_figure(path, (2.5 * columns + 1.8, 1.0 + rows * (0.9 + 0.26 * len(depths))), draw)


def plot_splits(records: Sequence[Record], path: Path) -> None:
    """RocketKV's score against a fixed split, a line a budget; the adaptive rule across in the same colour."""
    groups: dict[tuple[int, float | None], list[float]] = {}
    for record in splits_of(records):
        split = record["policy_options"].get("split")
        at = None if split in (None, "none", "adaptive") else float(split)
        groups.setdefault((record["budget_tokens"], at), []).append(record["score"])
    budgets = sorted({budget for budget, _ in groups})

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for number, budget in enumerate(budgets):
            fixed = sorted(at for b, at in groups if b == budget and at is not None)
            scores = [interval(groups[budget, at]) for at in fixed]
            draw_line(axis, [at + 0.004 * number for at in fixed], scores, f"budget {budget:,}", number)
            if (budget, None) in groups:
                adaptive = 100 * interval(groups[budget, None]).mean
                axis.axhline(adaptive, color=f"C{number % COLOURS}", ls="--")
        axis.set(
            xlabel="split r (0: selection alone, 1: eviction alone)", ylabel="score (points of 100)", ylim=(-2, 102)
        )
        axis.grid(alpha=0.3)
        counted = (interval(values) for values in groups.values())
        axis.set_title(f"rocketkv, {_tasks(records)}, {_count(counted)}; dashed: the adaptive rule", fontsize=9)
        draw_legend(figure, [axis])

    save_figure(path, (6.4, 4.8), draw)


def splits_of(records: Iterable[Record]) -> list[Record]:
    """Records of RocketKV whose only option, if any, is the split."""
    return [r for r in records if r["policy_name"] == "rocketkv" and set(r["policy_options"]) <= {"split"}]


def _by_length(
    found: dict[tuple[str, int | None, int], Interval],
    title: str,
    label: str,
    path: Path,
    limits: tuple[float, float] | None,
    factor: float,
) -> None:
    budgets = sorted({budget for _, budget, _ in found if budget is not None})
    policies = list(dict.fromkeys(policy for policy, budget, _ in found if budget is not None))

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(budgets), sharey=True, squeeze=False)[0]
        for axis, budget in zip(axes, budgets, strict=True):
            scores = {(policy, length): score for (policy, b, length), score in found.items() if b == budget}
            draw_curves(axis, policies, scores, dodge=DODGE, factor=factor)
            full = sorted((length, score) for (policy, _, length), score in found.items() if policy == FULL)
            if full:
                heights = [factor * score.mean for _, score in full]
                axis.plot([length for length, _ in full], heights, color="black", ls=":", marker="x", label="full")
            axis.set_xscale("log", base=2)
            whole_ticks(axis, [length for _, _, length in found])
            axis.set(xlabel="length (tokens of prompt and answer)")
            if limits:
                axis.set_ylim(*limits)
            else:
                axis.set_yscale("log", base=2)
                axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axis.set_title(f"budget {budget:,} tokens", fontsize=9)
        axes[0].set_ylabel(label)
        figure.suptitle(title, fontsize=10)
        draw_legend(figure, axes)

    save_figure(path, (max(6.4, 4.2 * len(budgets)), 5.0), draw)


def _policies(lines: Iterable[Line]) -> list[str]:
    return list(dict.fromkeys(line.policy for line in lines if line.policy != FULL))


def _bare(score: Interval) -> Interval:
    return Interval(score.mean, score.mean, score.mean, score.n)


def _count(scores: Iterable[Interval]) -> str:
    return f"n = {_span(sorted({score.n for score in scores}))}"


def _span(counts: Sequence[int]) -> str:
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _tasks(records: Sequence[Record]) -> str:
    tasks = list(dict.fromkeys(record["task"] for record in records))
    return tasks[0] if len(tasks) == 1 else f"mean over {len(tasks)} tasks"
