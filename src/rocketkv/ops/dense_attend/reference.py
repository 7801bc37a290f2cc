"""Exact attention of one query per head over every token held: what an uncompressed cache costs."""

from __future__ import annotations

import torch

from rocketkv.ops.attend.reference import attend
from rocketkv.types import Float, RaggedKV, Tensor


def dense_attend(q: Float[Tensor, "B G R D"], kv: RaggedKV, *, scaling: float) -> Float[Tensor, "B G R Dv"]:
    """Softmax attention of q over all `kv.lengths` tokens of each segment, in q's dtype, accumulated in float32.

    Returns:
        Zeros for an empty segment.
    """
    token = torch.arange(int(kv.lengths.max()), device=q.device)
    return attend(q, kv, token.expand(*kv.lengths.shape, -1), kv.lengths, scaling=scaling)


def as_store(keys: Float[Tensor, "B G C D"], values: Float[Tensor, "B G C Dv"]) -> RaggedKV:
    """Padded columns that all hold tokens, seen as a store: nothing is copied where they are contiguous."""
    batch, heads, columns = keys.shape[:3]
    starts = torch.arange(batch * heads, device=keys.device).view(batch, heads) * columns
    full = torch.full_like(starts, columns)
    return RaggedKV(keys.reshape(-1, keys.shape[-1]), values.reshape(-1, values.shape[-1]), starts, full, full)
