"""The ragged KV store: flat memory, one segment per (row, KV head), grown in chunks; bytes counted as held."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch

from rocketkv.ops.dispatch import op
from rocketkv.ops.ragged import columns_of, segment_index, segment_starts
from rocketkv.types import Bool, Candidates, Float, Int, RaggedKV, Tensor

Table = TypeVar("Table", RaggedKV, Candidates)
OptionalTable = TypeVar("OptionalTable", RaggedKV, Candidates | None)

GROWTH_TOKENS = 64
"""Least room to grow, in tokens: what one reallocation of a segment buys."""


def headroom(lengths: Int[Tensor, "B G"]) -> Int[Tensor, "B G"]:
    """Capacity for segments of `lengths` tokens: a sixteenth more, at least GROWTH_TOKENS."""
    return lengths + (lengths // 16).clamp(min=GROWTH_TOKENS)


def pack(
    keys: Float[Tensor, "B G C D"],
    values: Float[Tensor, "B G C Dv"],
    keep: Bool[Tensor, "B G C"],
    positions: Int[Tensor, "B G C"] | None = None,
) -> RaggedKV:
    """A new store that holds the columns where `keep` is True, in position order, with room to grow."""
    lengths = keep.sum(-1)
    capacities = headroom(lengths)
    starts = segment_starts(capacities)
    kv = RaggedKV(
        keys.new_empty(int(capacities.sum()), keys.shape[-1]),
        values.new_empty(int(capacities.sum()), values.shape[-1]),
        starts,
        lengths,
        capacities,
    )
    target = segment_index(starts, lengths)
    if positions is not None:
        kv.positions = positions.new_empty(kv.keys.shape[0])
        kv.positions[target] = positions[keep]
    whole = keep.flatten(1).all(-1)
    for row in whole.nonzero()[:, 0].tolist():  # copied as it is: rows that stay whole are the large ones
        for stored, columns in ((kv.keys, keys), (kv.values, values)):
            place = columns_of(stored, starts[row : row + 1], lengths[row : row + 1])
            assert place is not None, "segments of one row that are equally long lie evenly"
            place[0].copy_(columns[row])
    if not bool(whole.all()):
        some = keep & ~whole[:, None, None]
        target = segment_index(starts[~whole], lengths[~whole])
        kv.keys[target] = keys[some]
        kv.values[target] = values[some]
    return kv


def choose(keep: Bool[Tensor, "B G C"], stored: Bool[Tensor, "B G C"]) -> Candidates:
    """The candidates that `keep` marks among the columns that are `stored` (and packed, in order)."""
    lengths = keep.sum(-1)
    capacities = headroom(lengths)
    starts = segment_starts(capacities)
    slots = torch.empty(int(capacities.sum()), dtype=torch.int32, device=keep.device)
    slots[segment_index(starts, lengths)] = (stored.cumsum(-1) - 1)[keep].int()
    return Candidates(slots, starts, lengths, capacities)


def append(
    kv: RaggedKV,
    keys: Float[Tensor, "B G D"],
    values: Float[Tensor, "B G Dv"],
    row_tokens: Int[Tensor, "B"],
    backend: str,
) -> None:
    """Write one token per segment behind its last one, in place; it is its row's last of `row_tokens`.

    There must be room (`grow`).
    """
    if kv.positions is not None:
        kv.positions[kv.starts + kv.lengths] = row_tokens[:, None] - 1
    op("append_token", "append_token", backend)(keys, values, kv)


def append_newest(candidates: Candidates, kv: RaggedKV) -> None:
    """Make the newest token of every segment a candidate, in place. There must be room (`grow`)."""
    candidates.slots[candidates.starts + candidates.lengths] = (kv.lengths - 1).int()
    candidates.lengths = candidates.lengths + 1


def grow(table: Table) -> Table:
    """The same contents with fresh room behind every segment."""
    return _moved(table, table.starts, table.lengths, headroom(table.lengths))


def select_rows(table: Table, rows: Int[Tensor, "b"]) -> Table:
    """The given rows, in that order, each with memory of its own (rows may repeat)."""
    return _moved(table, table.starts[rows], table.lengths[rows], table.capacities[rows])


def view_rows(table: OptionalTable, rows: Int[Tensor, "b"] | None) -> OptionalTable:
    """The given rows, without a copy; None for all."""
    if rows is None or table is None:
        return table
    return replace(table, starts=table.starts[rows], lengths=table.lengths[rows], capacities=table.capacities[rows])


def _moved(
    table: Table, starts: Int[Tensor, "b G"], lengths: Int[Tensor, "b G"], capacities: Int[Tensor, "b G"]
) -> Table:
    fresh = segment_starts(capacities)
    source, target = segment_index(starts, lengths), segment_index(fresh, lengths)
    moved = {}
    for name in ("slots",) if isinstance(table, Candidates) else ("keys", "values", "positions"):
        old = getattr(table, name)
        if old is None:
            continue
        moved[name] = old.new_empty(int(capacities.sum()), *old.shape[1:])
        moved[name][target] = old[source]
    return replace(table, starts=fresh, lengths=lengths, capacities=capacities, **moved)


def compact(
    keys: Float[Tensor, "B G C D"], values: Float[Tensor, "B G C Dv"], valid: Bool[Tensor, "B C"] | None
) -> tuple[Float[Tensor, "B G C D"], Float[Tensor, "B G C Dv"], Int[Tensor, "B G"]]:
    """Padded columns with the held ones pushed to the right end, in order, and how many they are."""
    batch, heads, columns = keys.shape[:3]
    if valid is None:
        return keys, values, torch.full((batch, heads), columns, device=keys.device)
    counts = valid.sum(-1)[:, None].expand(-1, heads).contiguous()
    if not bool((valid[:, :-1] <= valid[:, 1:]).all()):
        order = valid.to(torch.int8).argsort(dim=-1, stable=True)[:, None, :, None]  # [B, 1, C, 1]
        keys = keys.gather(2, order.expand(-1, heads, -1, keys.shape[-1]))
        values = values.gather(2, order.expand(-1, heads, -1, values.shape[-1]))
    return keys, values, counts


def right_aligned(
    kv: RaggedKV,
    keys: Float[Tensor, "B G q D"],
    values: Float[Tensor, "B G q Dv"],
    valid: Bool[Tensor, "B q"] | None,
) -> tuple[Float[Tensor, "B G C D"], Float[Tensor, "B G C Dv"], Int[Tensor, "B G"]]:
    """Stored tokens and new ones in position order, pushed to the right end of padded columns; zeros to their left.

    `valid` marks the new columns that hold tokens (None: all). Returns keys, values and the tokens of each segment.
    """
    batch, heads, new = keys.shape[:3]
    fresh = torch.full((batch,), new, device=keys.device) if valid is None else valid.sum(-1)
    counts = kv.lengths + fresh[:, None]
    columns = int(counts.max())
    stored_at, held_index = columns - counts, segment_index(kv.starts, kv.lengths)  # [B, G]
    place = segment_index(stored_at + columns * _segment_numbers(stored_at), kv.lengths)
    merged = []
    for flat, added in ((kv.keys, keys), (kv.values, values)):
        out = added.new_zeros(batch * heads * columns, added.shape[-1])
        out[place] = flat[held_index]
        out = out.view(batch, heads, columns, added.shape[-1])
        # New tokens are right-aligned already: padding stands on their left, where stored tokens now lie.
        tail = min(new, columns)
        added = added[:, :, new - tail :]
        if valid is None:
            out[:, :, columns - tail :] = added
        else:
            out[:, :, columns - tail :] = torch.where(
                valid[:, None, new - tail :, None], added, out[:, :, columns - tail :]
            )
        merged.append(out)
    return merged[0], merged[1], counts


def _segment_numbers(like: Int[Tensor, "B G"]) -> Int[Tensor, "B G"]:
    return torch.arange(like.numel(), device=like.device).view_as(like)


def tensor_bytes(*tensors: Tensor) -> int:
    """Bytes of the memory behind the tensors, each piece of memory counted once."""
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(memory.values())
