"""Parts of pictures of scores: lines with intervals, ticks, names of axes, one legend for all panels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rocketkv.evals.tables import Interval

LEGEND_INCHES = 1.7
"""Width of one entry of a legend."""
STYLES = ("-", "--", ":")
COLOURS = 10
"""Lines repeat their colours after that many, in another style."""


def draw_curves(
    axis: Any, policies: Sequence[str], scores: dict[tuple[str, int], Interval], *, dodge: float, factor: float = 100
) -> None:
    """A line a policy over (policy, place) -> score; Full-KV is left to the caller."""
    for number, policy in enumerate(policies):
        places = sorted(place for name, place in scores if name == policy)
        shift = 1 + dodge * (number - (len(policies) - 1) / 2)
        if places:
            draw_line(
                axis, [shift * place for place in places], [scores[policy, p] for p in places], policy, number, factor
            )
    axis.grid(alpha=0.3)


def draw_line(
    axis: Any, places: Sequence[float], scores: Sequence[Interval], label: str, number: int, factor: float = 100
) -> None:
    """Scores at places, in the colour and style of line `number`; intervals only where they have a width."""
    means = [factor * score.mean for score in scores]
    below = [factor * max(0.0, score.mean - score.low) for score in scores]
    above = [factor * max(0.0, score.high - score.mean) for score in scores]
    colour = f"C{number % COLOURS}"
    style: dict[str, Any] = {"color": colour, "ecolor": (colour, 0.4), "ls": STYLES[number // COLOURS % len(STYLES)]}
    if any(below) or any(above):
        style |= {"elinewidth": 0.8, "capsize": 2}
        axis.errorbar(places, means, [below, above], marker="o", ms=3, lw=1.3, label=label, **style)
    else:
        del style["ecolor"]
        axis.plot(places, means, marker="o", ms=3, lw=1.3, label=label, **style)


def label_outer(axis: Any, place: int, count: int, columns: int, below: str, beside: str) -> None:
    """Name the axes of panel `place` of `count` where no panel follows below it, or stands before it."""
    if place + columns >= count:
        axis.set_xlabel(below, fontsize=8)
        axis.tick_params(labelbottom=True)
    if place % columns == 0:
        axis.set_ylabel(beside, fontsize=8)


def draw_legend(figure: Any, axes: Iterable[Any]) -> None:
    """One legend for all panels, under them."""
    known: dict[str, Any] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        known |= {name: handle for handle, name in zip(handles, names, strict=True) if name not in known}
    if known:
        columns = max(1, min(len(known), int(figure.get_figwidth() / LEGEND_INCHES)))
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=columns, fontsize=8)


def whole_ticks(axis: Any, values: Iterable[int]) -> None:
    """Ticks at these values, as plain numbers."""
    at = sorted(set(values))
    axis.set_xticks(at, [f"{value:,}" for value in at], fontsize=8)
    axis.minorticks_off()
