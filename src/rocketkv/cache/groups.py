"""Rows of a batch that select in the same way, with the page bounds they select by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rocketkv.cache.store import view_rows
from rocketkv.ops.dispatch import op
from rocketkv.ops.ragged import padded, padded_index, segment_index, segment_starts
from rocketkv.policies.base import Selector
from rocketkv.types import Candidates, Float, Int, PageBounds, RaggedKV, Tensor


@dataclass
class Group:
    """`rows` [b] of the batch (None: all) read through `selector`.

    `bounds` and `value_sums` [b, G, Dv] (float32) belong to these rows alone; None where not used.
    """

    selector: Selector
    rows: Int[Tensor, "b"] | None
    budget_tokens: Int[Tensor, "b"]
    bounds: PageBounds | None
    value_sums: Float[Tensor, "b G Dv"] | None

    def pick(self, table: Tensor) -> Tensor:
        """The group's rows of a table over the batch."""
        return table if self.rows is None else table[self.rows]

    def tensors(self) -> list[Tensor]:
        """Every tensor that is held."""
        bounds = self.bounds
        pages = [] if bounds is None else [bounds.data, bounds.upper, bounds.lower, bounds.pitch, bounds.page_tokens]
        own = (self.rows, self.budget_tokens, self.value_sums)
        return pages + [tensor for tensor in own if tensor is not None]


def lay_out(
    kv: RaggedKV,
    candidates: Candidates | None,
    selector: Selector,
    rows: list[int],
    budgets: list[int],
    page_tokens: list[int],
    backend: str,
) -> Group:
    """A group of `rows` with fresh bounds of `page_tokens` each (0: the selector uses none)."""
    device = kv.starts.device
    everyone = rows == list(range(kv.starts.shape[0]))
    index = None if everyone else torch.tensor(rows, device=device)
    group = Group(selector, index, torch.tensor(budgets, device=device), None, None)
    mine, eligible = view_rows(kv, index), view_rows(candidates, index)
    if page_tokens[0] > 0:
        table = mine if eligible is None else eligible
        ordinals, _ = padded_index(torch.zeros_like(table.lengths), table.lengths, int(table.lengths.max()))
        within = ordinals if eligible is None else eligible.slots[eligible.starts[..., None] + ordinals]
        build = op("page_bounds", "build_page_bounds", backend)
        sizes = torch.tensor(page_tokens, device=device)
        group.bounds = build(kv.keys, mine.starts[..., None] + within, table.lengths, sizes, table.capacities)
    if selector.means_values:
        group.value_sums = padded(mine)[1].float().sum(2)
    return group


def take_token(group: Group, lengths: Int[Tensor, "B G"], keys: Tensor, values: Tensor, backend: str) -> None:
    """Bring bounds and sums up to date with the token just appended.

    `lengths` [B, G] count candidates, the new one included; `keys` and `values` [B, G, D] are the whole batch's.
    """
    if group.bounds is not None:
        update = op("page_bounds", "update_page_bounds", backend)
        update(group.bounds, group.pick(keys), group.pick(lengths) - 1)
    if group.value_sums is not None:
        group.value_sums += group.pick(values)


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
    return Group(
        group.selector,
        None if len(rows) == len(index) else rows,
        group.budget_tokens[taken],
        None if group.bounds is None else _select_bounds(group.bounds, taken),
        None if group.value_sums is None else group.value_sums[taken],
    )


def _select_bounds(bounds: PageBounds, rows: Int[Tensor, "b"]) -> PageBounds:
    """Bounds of the given rows, each with memory of its own (rows may repeat)."""
    old = replace(
        bounds,
        upper=bounds.upper[rows],
        lower=bounds.lower[rows],
        pitch=bounds.pitch[rows],
        page_tokens=bounds.page_tokens[rows],
    )
    sizes = (old.lower - old.upper) + _half(bounds)[rows]
    upper = segment_starts(sizes)
    data = bounds.data[segment_index(old.upper, sizes)]
    return replace(old, data=data, upper=upper, lower=upper + (old.lower - old.upper))


def _half(bounds: PageBounds) -> Int[Tensor, "B G"]:
    """Elements of one bound of a segment: head size times pitch."""
    pages = bounds.pitch * torch.where(bounds.lower == bounds.upper, 1, 2)
    return bounds.pitch * (bounds.data.numel() // int(pages.sum()))
