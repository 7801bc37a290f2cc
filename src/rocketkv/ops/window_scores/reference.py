"""How much attention the last tokens of the prompt pay to each earlier token: the score that eviction sorts by."""

from __future__ import annotations

import torch

from rocketkv.types import Float, Int, Tensor


def window_scores(
    queries: Float[Tensor, "B G R W D"],
    query_counts: Int[Tensor, "B"],
    keys: Float[Tensor, "B G C D"],
    key_counts: Int[Tensor, "B G"],
    *,
    scaling: float,
) -> Float[Tensor, "B G C"]:
    """Attention mass of the window queries on every candidate, summed over the window and the group.

    Args:
        queries: rotated queries of the prompt's last W tokens, right-aligned; the last `query_counts[b]` count.
        keys: rotated keys of all candidates in position order, right-aligned; the last `key_counts[b, g]` count, and
            the window's own tokens are the last `query_counts[b]` of them.
        scaling: what the model multiplies its logits by.

    Returns:
        Scores in float32 (float64 for float64 input), minus infinity in the window's own columns and where no token is.

    Memory is O(R W C), one KV head of one row at a time; no C x C matrix is formed.
    Paper: first stage, SnapKV with the group's heads summed.
    """
    dtype = torch.promote_types(queries.dtype, torch.float32)
    batch, heads, columns = keys.shape[:3]
    window = queries.shape[3]
    column = torch.arange(columns, device=keys.device)
    # Causal inside the window: query i stands at column C - W + i.
    causal = column <= (columns - window + torch.arange(window, device=keys.device))[:, None]  # [W, C]
    scores = torch.full((batch, heads, columns), -torch.inf, dtype=dtype, device=keys.device)
    for b in range(batch):
        count = min(int(query_counts[b]), columns)
        for g in range(heads):
            first = columns - int(key_counts[b, g])
            if count == 0 or first >= columns - count:
                continue
            logits = queries[b, g, :, window - count :].to(dtype) @ keys[b, g, first:].to(dtype).T * scaling
            logits = logits.masked_fill(~causal[window - count :, first:], -torch.inf)  # [R, w, C - first]
            mass = logits.softmax(-1).sum((0, 1))
            scores[b, g, first : columns - count] = mass[: columns - count - first]
    return scores
