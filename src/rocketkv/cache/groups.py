"""Rows of a batch that select in the same way, with the page bounds they select by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rocketkv.cache.store import view_rows
from rocketkv.ops.dispatch import op
from rocketkv.ops.ragged import padded_index, segment_index, segment_starts
from rocketkv.policies.base import Selector
from rocketkv.types import Int, PageBounds, RaggedKV, Tensor


@dataclass
class Group:
    """`rows` [b] of the batch (None: all) read through `selector`; `bounds` belong to these rows alone."""

    selector: Selector
    rows: Int[Tensor, "b"] | None
    budget_tokens: Int[Tensor, "b"]
    bounds: PageBounds | None


def lay_out(
    kv: RaggedKV, selector: Selector, rows: list[int], budgets: list[int], page_tokens: list[int], backend: str
) -> Group:
    """A group of `rows` with fresh bounds of `page_tokens` each (0: the selector uses none)."""
    device = kv.starts.device
    everyone = rows == list(range(kv.starts.shape[0]))
    index = None if everyone else torch.tensor(rows, device=device)
    bounds = None
    if page_tokens[0] > 0:
        mine = view_rows(kv, index)
        slots, _ = padded_index(mine.starts, mine.lengths, int(mine.lengths.max()))
        build = op("page_bounds", "build_page_bounds", backend)
        bounds = build(kv.keys, slots, mine.lengths, torch.tensor(page_tokens, device=device), mine.capacities)
    return Group(selector, index, torch.tensor(budgets, device=device), bounds)


def take_key(group: Group, kv: RaggedKV, keys: Tensor, backend: str) -> None:
    """Bring the bounds up to date with the token just appended; `keys` [B, G, D] are the whole batch's."""
    if group.bounds is None:
        return
    mine = keys if group.rows is None else keys[group.rows]
    lengths = kv.lengths if group.rows is None else kv.lengths[group.rows]
    op("page_bounds", "update_page_bounds", backend)(group.bounds, mine, lengths - 1)


def reordered(group: Group, index: Int[Tensor, "n"], batch: int) -> Group | None:
    """The group after the batch became rows `index` of itself; None if none of its rows is left."""
    old = torch.arange(batch, device=index.device) if group.rows is None else group.rows
    place = torch.full((batch,), -1, device=index.device)
    place[old] = torch.arange(len(old), device=index.device)
    mine = place[index]
    rows = (mine >= 0).nonzero()[:, 0]
    if len(rows) == 0:
        return None
    taken = mine[rows]
    bounds = None if group.bounds is None else _select_bounds(group.bounds, taken)
    return Group(group.selector, None if len(rows) == len(index) else rows, group.budget_tokens[taken], bounds)


def _select_bounds(bounds: PageBounds, rows: Int[Tensor, "b"]) -> PageBounds:
    """Bounds of the given rows, each with memory of its own (rows may repeat)."""
    old = replace(bounds, upper=bounds.upper[rows], lower=bounds.lower[rows], pitch=bounds.pitch[rows],
                  page_tokens=bounds.page_tokens[rows])  # fmt: skip
    sizes = (old.lower - old.upper) + _half(bounds)[rows]
    upper = segment_starts(sizes)
    data = bounds.data[segment_index(old.upper, sizes)]
    return replace(old, data=data, upper=upper, lower=upper + (old.lower - old.upper))


def _half(bounds: PageBounds) -> Int[Tensor, "B G"]:
    """Elements of one bound of a segment: head size times pitch."""
    pages = bounds.pitch * torch.where(bounds.lower == bounds.upper, 1, 2)
    return bounds.pitch * (bounds.data.numel() // int(pages.sum()))
