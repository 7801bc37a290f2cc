"""Dense causal attention of new prompt tokens over ragged, right-aligned columns."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from rocketkv.types import Float, Int, Tensor

MASK_ELEMENTS = 1 << 25
"""Mask elements formed at once: 32 MB of booleans. Queries are taken in blocks that stay below it."""


def attend_prompt(
    q: Float[Tensor, "B G R q D"],
    keys: Float[Tensor, "B G C D"],
    values: Float[Tensor, "B G C Dv"],
    counts: Int[Tensor, "B G"],
    *,
    scaling: float,
) -> Float[Tensor, "B G R q Dv"]:
    """Query i stands at column C - q + i and sees the columns up to its own that hold tokens.

    The last `counts[b, g]` columns of each segment hold tokens. A query that stands left of all of them is padding:
    its output is finite and meaningless. Keys and values are shared by the group, never repeated.
    """
    batch, heads, group, new, head_dim = q.shape
    columns = keys.shape[2]
    column = torch.arange(columns, device=q.device)
    first = (columns - counts).view(-1, 1, 1, 1)  # [BG, 1, 1, 1]
    flat_q = q.reshape(batch * heads, group, new, head_dim)
    flat_k = keys.reshape(batch * heads, 1, columns, head_dim).expand(-1, group, -1, -1)
    flat_v = values.reshape(batch * heads, 1, columns, -1).expand(-1, group, -1, -1)
    block = max(1, MASK_ELEMENTS // (batch * heads * columns))
    parts = []
    for start in range(0, new, block):
        stop = min(start + block, new)
        stands_at = torch.arange(columns - new + start, columns - new + stop, device=q.device)[:, None]
        mask = (column >= first) & (column <= torch.maximum(stands_at, first))  # [BG, 1, q, C]
        parts.append(
            scaled_dot_product_attention(flat_q[:, :, start:stop], flat_k, flat_v, attn_mask=mask, scale=scaling)
        )
    return torch.cat(parts, dim=2).view(batch, heads, group, new, -1)
