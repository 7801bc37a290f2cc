"""Index arithmetic for segments that lie one after the other in flat memory."""

from __future__ import annotations

import torch

from rocketkv.types import Bool, Float, Int, RaggedKV, Tensor


def segment_starts(sizes: Int[Tensor, "*S"]) -> Int[Tensor, "*S"]:
    """Where each segment begins when segments of `sizes` elements are laid one after the other, in row-major order."""
    flat = sizes.reshape(-1)
    return (flat.cumsum(0) - flat).view_as(sizes)


def segment_index(starts: Int[Tensor, "*S"], sizes: Int[Tensor, "*S"]) -> Int[Tensor, "n"]:
    """The flat index of every element of every segment, in row-major order of the segments."""
    starts, sizes = starts.reshape(-1), sizes.reshape(-1)
    shift = torch.repeat_interleave(starts - segment_starts(sizes), sizes)
    return torch.arange(shift.numel(), device=starts.device) + shift


def padded_index(
    starts: Int[Tensor, "B G"], lengths: Int[Tensor, "B G"], width: int
) -> tuple[Int[Tensor, "B G width"], Bool[Tensor, "B G width"]]:
    """Flat indices of each segment's first `width` slots, and which of them hold tokens.

    Indices behind a segment's end point at its start, so that gathering them stays in bounds; mask the result.
    """
    offset = torch.arange(width, device=starts.device)
    valid = offset < lengths[..., None]  # [B, G, width]
    return starts[..., None] + torch.where(valid, offset, 0), valid


def padded(kv: RaggedKV) -> tuple[Float[Tensor, "B G T D"], Float[Tensor, "B G T Dv"], Bool[Tensor, "B G T"]]:
    """A padded copy of the store: keys, values (zero where nothing is held) and the mask of what is held."""
    index, valid = padded_index(kv.starts, kv.lengths, int(kv.lengths.max()))
    return (
        kv.keys[index].masked_fill(~valid[..., None], 0),
        kv.values[index].masked_fill(~valid[..., None], 0),
        valid,
    )


def per_query_head(kv: RaggedKV, group_size: int) -> RaggedKV:
    """The same memory seen once per query head, [B, G R]: nothing is copied but the three index tables."""
    tables = (table.repeat_interleave(group_size, dim=1) for table in (kv.starts, kv.lengths, kv.capacities))
    return RaggedKV(kv.keys, kv.values, *tables)


def columns_of(
    rows: Float[Tensor, "N D"], starts: Int[Tensor, "B G"], lengths: Int[Tensor, "B G"]
) -> Float[Tensor, "B G T D"] | None:
    """Segments of a flat store seen as columns, without a copy; None unless they are equally long and evenly placed."""
    batch, heads = starts.shape
    places, tokens = starts.tolist(), int(lengths.max())
    first = places[0][0]
    down = places[1][0] - first if batch > 1 else 0
    across = places[0][1] - first if heads > 1 else 0
    even = all(places[b][g] == first + b * down + g * across for b in range(batch) for g in range(heads))
    if not even or down < 0 or across < 0 or int(lengths.min()) != tokens:
        return None
    width, offset = rows.shape[1], rows.storage_offset()
    strides = (down * width, across * width, width, 1)
    return rows.as_strided((batch, heads, tokens, width), strides, offset + first * width)
