"""Exact attention of one query per head over chosen tokens of the flat store."""

from __future__ import annotations

import torch

from rocketkv.types import Float, Int, RaggedKV, Tensor


def attend(
    q: Float[Tensor, "B G R D"],
    kv: RaggedKV,
    slots: Int[Tensor, "B G K"],
    counts: Int[Tensor, "B G"],
    *,
    scaling: float,
) -> Float[Tensor, "B G R Dv"]:
    """Softmax attention of q over the first `counts[b, g]` of `slots[b, g]`, in q's dtype, accumulated in float32.

    Args:
        slots: places within segment (b, g), 0 to `kv.lengths[b, g]` - 1; entries behind the count are ignored.

    Returns:
        Zeros for a segment with a count of 0.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    read = torch.arange(slots.shape[-1], device=q.device) < counts[..., None]  # [B, G, K]
    index = kv.starts[..., None] + torch.where(read, slots, 0)
    keys = kv.keys[index].to(dtype).masked_fill(~read[..., None], 0)
    values = kv.values[index].to(dtype).masked_fill(~read[..., None], 0)
    logits = q.to(dtype) @ keys.transpose(-1, -2) * scaling  # [B, G, R, K]
    logits = logits.masked_fill(~read[:, :, None], torch.finfo(dtype).min)
    weights = logits.softmax(-1) * read[:, :, None]
    return (weights @ values).to(q.dtype)
