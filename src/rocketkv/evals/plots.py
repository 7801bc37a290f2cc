"""Pictures of diagnostics and evaluations. The only module that imports matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rocketkv.evals.diagnostics import Diagnosis

DOTS_PER_INCH = 120
COLOURS = 10
LINE_STYLES = ("-", "--", ":")
"""Lines repeat their colours after COLOURS policies, in another style."""


class PlotsMissingError(ImportError):
    """The library that draws is not installed; the message says how to get it."""


def _pyplot() -> Any:
    """Matplotlib without a display. Raises PlotsMissingError."""
    try:
        import matplotlib
    except ImportError:
        raise PlotsMissingError("plots need matplotlib: pip install 'rocketkv[plots]'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def check_plots() -> None:
    """Raise PlotsMissingError if nothing can be drawn."""
    _pyplot()


def plot_recall(found: Diagnosis, path: Path) -> None:
    """Recall of the exact top tokens, by decode step and by layer."""
    sizes = "/".join(str(tokens) for tokens in dict.fromkeys(found.top_tokens))
    label = f"recall of the exact top {sizes} tokens (share)"
    _by_step_and_layer(found, found.recall, label, path)


def plot_mass(found: Diagnosis, path: Path) -> None:
    """Attention mass of the tokens read, by decode step and by layer."""
    _by_step_and_layer(found, found.mass, "attention mass of the tokens read (share)", path)


def plot_distinct(found: Diagnosis, path: Path) -> None:
    """Different tokens that an oracle names over the whole generation: how much would have to be kept for it."""

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        steps = np.arange(1, len(found.distinct) + 1)
        per_head = found.distinct.reshape(len(steps), -1)
        low, high = np.quantile(per_head, [0.1, 0.9], axis=1)
        axis.fill_between(steps, low, high, alpha=0.25, label="10 % to 90 % of the heads")
        axis.plot(steps, per_head.mean(1), label="mean")
        held = found.prompt_tokens + steps
        axis.axhline(min(found.oracle_tokens, held[0]), color="grey", ls="--", label="read in one step")
        if per_head.max() > held[-1] / 2:
            axis.plot(steps, held, color="black", ls=":", label="all tokens held")
        axis.set(xlabel="decode step", ylabel=f"distinct tokens in the exact top {found.oracle_tokens}", ylim=(0, None))
        axis.set_title(f"{_context(found)}; {per_head.shape[1]:,} layers × KV heads", fontsize=9)
        axis.legend(fontsize=8)

    save_figure(path, (6.4, 4.2), draw)


def plot_all(found: Diagnosis, folder: Path) -> list[Path]:
    """Every picture of a diagnosis as PNG in `folder`, which must exist. Returns their paths."""
    pictures = {"recall.png": plot_recall, "mass.png": plot_mass, "distinct.png": plot_distinct}
    for name, plot in pictures.items():
        plot(found, folder / name)
    return [folder / name for name in pictures]


def _by_step_and_layer(found: Diagnosis, values: np.ndarray, label: str, path: Path) -> None:
    """One line a policy: mean over layers and heads at each step, and over steps and heads in each layer."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        steps, layers = np.arange(1, values.shape[1] + 1), np.arange(1, values.shape[2] + 1)
        for number, (name, of_policy) in enumerate(zip(found.policies, values, strict=True)):
            style = LINE_STYLES[number // COLOURS % len(LINE_STYLES)]
            left.plot(steps, of_policy.mean((1, 2)), marker=".", ls=style, label=name)
            right.plot(layers, of_policy.mean((0, 2)), marker=".", ls=style, label=name)
        left.set(xlabel="decode step", ylabel=label, ylim=(0, 1.02))
        right.set(xlabel="compressed layer")
        left.set_title(f"mean over {len(layers)} layers × {values.shape[3]} KV heads", fontsize=9)
        right.set_title(f"mean over {len(steps)} steps × {values.shape[3]} KV heads", fontsize=9)
        for axis in (left, right):
            axis.grid(alpha=0.3)
            axis.xaxis.get_major_locator().set_params(integer=True)
        figure.suptitle(_context(found), fontsize=10)
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 4), fontsize=8)

    save_figure(path, (9.6, 4.6), draw)


def _context(found: Diagnosis) -> str:
    return f"one prompt of {found.prompt_tokens:,} tokens, {len(found.answer_ids):,} decode steps"


def save_figure(path: Path, inches: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Let `draw` fill a figure of this size, and write it as PNG. Raises PlotsMissingError."""
    pyplot = _pyplot()
    figure = pyplot.figure(figsize=inches, layout="constrained")
    try:
        draw(figure)
        figure.savefig(path, dpi=DOTS_PER_INCH)
    finally:
        pyplot.close(figure)
