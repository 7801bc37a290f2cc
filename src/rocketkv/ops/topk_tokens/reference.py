"""From page scores to the tokens that will be read."""

from __future__ import annotations

import torch

from rocketkv.types import Float, Int, Tensor


def topk_tokens(
    scores: Float[Tensor, "B G P"],
    lengths: Int[Tensor, "B G"],
    page_tokens: Int[Tensor, "B"],
    counts: Int[Tensor, "B G"],
    *,
    sink_tokens: int = 0,
    local_tokens: int = 0,
) -> Int[Tensor, "B G K"]:
    """The `counts[b, g]` best tokens of each segment, in position order; entries behind the count are 0.

    A token's score is its page's. Higher scores first, then lower positions, so that at most one page is taken in
    part. The first `sink_tokens` and the last `local_tokens` come before everything else, inside the count.

    Args:
        scores: per page; minus infinity behind the last page.
        counts: tokens to take, at most `lengths`.
    """
    width, taken = int(lengths.max()), int(counts.max())
    token = torch.arange(width, device=scores.device)
    page = (token // page_tokens[:, None]).clamp(max=scores.shape[-1] - 1)  # [B, T]
    score = scores.gather(-1, page[:, None].expand(-1, scores.shape[1], -1))  # [B, G, T]
    held = token < lengths[..., None]
    # Where the count has no room for all of them, sinks come first, then the newest tokens.
    local = (counts - sink_tokens).clamp(min=0, max=local_tokens)[..., None]
    forced = held & ((token < sink_tokens) | (token >= lengths[..., None] - local))
    score = score.masked_fill(forced, torch.inf).masked_fill(~held, -torch.inf)
    best = score.sort(dim=-1, descending=True, stable=True).indices[..., :taken]
    counted = torch.arange(taken, device=scores.device) < counts[..., None]
    in_order = best.masked_fill(~counted, width).sort(-1).values
    return in_order.masked_fill(~counted, 0)
