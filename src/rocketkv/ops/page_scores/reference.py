"""Hybrid sparse attention's estimate: a page's score from few head dimensions of its key bounds."""

from __future__ import annotations

import torch

from rocketkv.ops.page_bounds.reference import gather_bounds, page_counts
from rocketkv.types import Float, Int, PageBounds, Tensor


def page_scores(
    q: Float[Tensor, "B G R D"],
    bounds: PageBounds,
    lengths: Int[Tensor, "B G"],
    *,
    rank: Int[Tensor, "B G"],
    scaling: float,
) -> Float[Tensor, "B G P"]:
    """The share of attention that each token of a page is estimated to receive, averaged over the group.

    1. The `rank` dimensions with the largest sum over R of |q| are read, 2. their maximum where the sum over R of q is
    at least 0, else their minimum, 3. logits per query head, sharpened by sqrt(|q on dims| / |q|) (SparQ's
    temperature), softmax over the `lengths` tokens (a page counts once per token it holds), mean over R.

    Returns:
        Probabilities per token of the page in float32 (float64 for float64 input), minus infinity behind the last page.

    Paper: second stage, hybrid sparse attention. The bound holds for the summed query, not for each head.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q = q.to(dtype)
    magnitude = q.abs().sum(2)  # [B, G, D]
    widest = int(rank.max())
    dims = magnitude.argsort(dim=-1, descending=True, stable=True)[..., :widest]  # [B, G, r]
    read = torch.arange(widest, device=q.device) < rank[..., None]  # [B, G, r]
    take_upper = q.sum(2).gather(-1, dims) >= 0
    bound, in_use = gather_bounds(bounds, dims, take_upper, page_counts(bounds, lengths))
    known = read[..., None] & in_use[..., None, :]  # [B, G, r, P]
    bound = torch.where(known, bound.to(dtype), 0)

    q_read = q.gather(-1, dims[:, :, None].expand(-1, -1, q.shape[2], -1)) * read[:, :, None]  # [B, G, R, r]
    share = q_read.abs().sum(-1) / q.abs().sum(-1)  # [B, G, R]
    # A head with nothing on these dimensions (or a zero query) has flat logits whatever the temperature.
    share = torch.where(share > 0, share, 1)
    logits = q_read @ bound * (scaling / share.sqrt())[..., None]  # [B, G, R, P]
    logits = logits.masked_fill(~in_use[:, :, None], -torch.inf)
    return softmax_over_tokens(logits, bounds.page_tokens, lengths).mean(2).masked_fill(~in_use, -torch.inf)


def softmax_over_tokens(
    logits: Float[Tensor, "B G R P"], page_tokens: Int[Tensor, "B"], lengths: Int[Tensor, "B G"]
) -> Float[Tensor, "B G R P"]:
    """Softmax in which each page counts once for every token it holds; the last page may hold fewer."""
    first = torch.arange(logits.shape[-1], device=logits.device) * page_tokens[:, None, None]  # [B, 1, P]
    tokens = (lengths[..., None] - first).clamp(min=0).minimum(page_tokens[:, None, None])  # [B, G, P]
    peak = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
    weight = (logits - peak).exp()
    total = (weight * tokens[:, :, None]).sum(-1, keepdim=True)
    return weight / total.clamp(min=torch.finfo(logits.dtype).tiny)
