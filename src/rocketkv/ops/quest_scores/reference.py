"""Quest's estimate: a page's score from both bounds of every head dimension, each query head by its own signs."""

from __future__ import annotations

import torch

from rocketkv.ops.page_bounds.reference import gather_bounds, page_counts
from rocketkv.ops.page_scores.reference import softmax_over_tokens
from rocketkv.types import Float, Int, PageBounds, Tensor


def quest_scores(
    q: Float[Tensor, "B G R D"], bounds: PageBounds, lengths: Int[Tensor, "B G"], *, scaling: float
) -> tuple[Float[Tensor, "B G P"], int]:
    """The share of attention that each token of a page is estimated to receive, averaged over the group.

    A page's logit is the sum over all dimensions of max(q * maximum, q * minimum), times `scaling`: an upper bound of
    the logits of its keys, for each query head.

    Returns:
        Probabilities per token of the page (float32, float64 for float64 input; minus infinity behind the last page),
        and the bound elements that had to be read: both where the heads of a group differ in a dimension's sign.

    Source: Quest (Tang et al., ICML 2024, arXiv:2406.10774). Differs: heads of a group vote together.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q = q.to(dtype)
    every = torch.arange(q.shape[-1], device=q.device).expand(*q.shape[:2], -1)
    pages = page_counts(bounds, lengths)
    yes = torch.ones_like(every, dtype=torch.bool)
    upper, in_use = gather_bounds(bounds, every, yes, pages)
    lower, _ = gather_bounds(bounds, every, ~yes, pages)
    upper, lower = (torch.where(in_use[:, :, None], bound.to(dtype), 0) for bound in (upper, lower))
    logits = (q.clamp(min=0) @ upper + q.clamp(max=0) @ lower) * scaling  # [B, G, R, P]
    logits = logits.masked_fill(~in_use[:, :, None], -torch.inf)
    scores = softmax_over_tokens(logits, bounds.page_tokens, lengths).mean(2).masked_fill(~in_use, -torch.inf)
    two = (bounds.page_tokens > 1)[:, None, None]  # at one token per page, both bounds are the key
    rows = ((q > 0).any(2) | (q < 0).any(2)).long() + (two & (q > 0).any(2) & (q < 0).any(2)).long()  # [B, G, D]
    return scores, int((rows.sum(-1) * pages).sum())
