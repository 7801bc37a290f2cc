"""Which of its row's tokens each column or stored token is, counted from 0 without padding."""

from __future__ import annotations

import torch

from rocketkv.ops.ragged import padded_index, segment_index
from rocketkv.types import Bool, Int, RaggedKV, Tensor


def counted_positions(row_tokens: Int[Tensor, "B"], heads: int, columns: int) -> Int[Tensor, "B G C"]:
    """Positions of right-aligned columns that hold a row's tokens up to its last of `row_tokens`; below 0: no token."""
    column = torch.arange(columns, device=row_tokens.device)
    return (row_tokens[:, None] - columns + column)[:, None].expand(-1, heads, -1)


def merged_positions(
    kv: RaggedKV, counts: Int[Tensor, "B G"], row_tokens: Int[Tensor, "B"], columns: int
) -> Int[Tensor, "B G C"]:
    """Positions of stored tokens followed by new ones, in right-aligned columns of which `counts` hold tokens."""
    assert kv.positions is not None
    merged = counted_positions(row_tokens, counts.shape[1], columns).clone()
    segment = torch.arange(counts.numel(), device=counts.device).view_as(counts)
    place = segment_index(segment * columns + columns - counts, kv.lengths)
    merged.view(-1)[place] = kv.positions[segment_index(kv.starts, kv.lengths)]
    return merged


def padded_positions(kv: RaggedKV) -> tuple[Int[Tensor, "B G T"], Bool[Tensor, "B G T"]]:
    """The positions of every segment's tokens, -1 behind them, and the mask of what is held."""
    assert kv.positions is not None, "ask for them: CompressedCache(..., keep_positions=True)"
    index, held = padded_index(kv.starts, kv.lengths, int(kv.lengths.max()))
    return kv.positions[index].masked_fill(~held, -1), held
