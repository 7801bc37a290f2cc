"""SnapKV's eviction (Li et al., 2024, arXiv:2404.14469), per attention group: RocketKV's first stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch

from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Evictor, Prompt
from rocketkv.types import Bool, Float, Int, Tensor


@final
@dataclass(frozen=True)
class SnapKV(Evictor):
    """Keeps the tokens that the prompt's last queries attend to, and those queries' own tokens.

    Args:
        window_tokens: W, the last prompt tokens whose queries vote and which always stay.
        pool_tokens: width of the pooling along the sequence, odd: 63 in RocketKV, 7 in SnapKV.
        pooling: "max" or "avg".

    Differs: the votes of a KV head's query heads are summed and select once for the group, as RocketKV does; SnapKV
    itself selects per query head on repeated keys.
    """

    window_tokens: int = 32
    pool_tokens: int = 63
    pooling: Literal["max", "avg"] = "max"

    def __post_init__(self) -> None:
        if self.window_tokens < 1:
            raise ValueError(f"window_tokens={self.window_tokens} is below 1: give at least one query to vote")
        if self.pool_tokens < 1 or self.pool_tokens % 2 == 0:
            raise ValueError(f"pool_tokens={self.pool_tokens} is not an odd number of at least 1: 63 or 7 are usual")
        if self.pooling not in ("max", "avg"):
            raise ValueError(f"pooling={self.pooling!r} is unknown: choose max or avg")

    @property
    def observes(self) -> int:
        return self.window_tokens

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        window, own = own_columns(prompt, kept_tokens)
        return window | best_columns(self.pooled_scores(prompt), (kept_tokens - own)[:, None])

    def pooled_scores(self, prompt: Prompt) -> Float[Tensor, "B G C"]:
        """Attention mass received from the window, pooled; minus infinity where a column is no candidate."""
        window_scores = op("window_scores", "window_scores", prompt.backend)
        scores = window_scores(prompt.queries, prompt.query_counts, prompt.keys, prompt.counts, scaling=prompt.scaling)
        return pool(scores, self.pool_tokens, self.pooling)


def own_columns(prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> tuple[Bool[Tensor, "B G C"], Int[Tensor, "B"]]:
    """The columns of the window's own tokens, and how many those are (never more than the budget)."""
    assert prompt.query_counts is not None
    own = torch.minimum(prompt.query_counts, kept_tokens)  # [B]
    columns = prompt.keys.shape[2]
    column = torch.arange(columns, device=prompt.keys.device)
    mask = (column >= columns - own[:, None, None]) & (column >= columns - prompt.counts[..., None])
    return mask, own


def pool(scores: Float[Tensor, "B G C"], width: int, kind: str) -> Float[Tensor, "B G C"]:
    """Max or mean over `width` neighbouring candidates, stride 1; no-candidates stay minus infinity."""
    candidate = scores > -torch.inf
    if kind == "max":
        pooled = torch.nn.functional.max_pool1d(scores, width, stride=1, padding=width // 2)
    else:
        filled = torch.stack([scores.masked_fill(~candidate, 0), candidate.to(scores.dtype)])
        total, count = torch.nn.functional.avg_pool1d(filled.flatten(0, 1), width, 1, width // 2).view_as(filled)
        pooled = total / count
    return pooled.masked_fill(~candidate, -torch.inf)


def best_columns(scores: Float[Tensor, "B G C"], counts: Int[Tensor, "B #G"]) -> Bool[Tensor, "B G C"]:
    """The `counts` highest candidates of each segment; equal scores in position order."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    wanted = torch.arange(scores.shape[-1], device=scores.device) < counts[..., None]
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, wanted.expand_as(order))
    return chosen & (scores > -torch.inf)
