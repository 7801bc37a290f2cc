"""Ada-KV (Feng et al., 2024, arXiv:2407.11550): one budget for a layer, shared out among its heads by their scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch

from rocketkv.policies.base import Evictor, Prompt
from rocketkv.policies.snapkv import SnapKV, best_columns, own_columns
from rocketkv.types import Bool, Int, Tensor


@final
@dataclass(frozen=True)
class AdaKV(Evictor):
    """SnapKV's scores, ranked over all KV heads of a layer at once; a layer keeps G times the budget in all.

    Args:
        scorer: window and pooling of the scores.
        safeguard: share of the uniform budget that every head keeps for sure; 0.2 in Ada-KV.
    """

    scorer: SnapKV = field(default_factory=lambda: SnapKV(pool_tokens=7))
    safeguard: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.safeguard <= 1:
            raise ValueError(f"safeguard={self.safeguard} is outside 0 to 1: give the share that every head is sure of")

    @property
    def observes(self) -> int:
        return self.scorer.observes

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        scores = self.scorer.pooled_scores(prompt)
        batch, heads, columns = scores.shape
        window, own = own_columns(prompt, kept_tokens)
        chosen_tokens = kept_tokens - own
        sure = best_columns(scores, (chosen_tokens.double() * self.safeguard).long()[:, None])
        rest = scores.masked_fill(sure, -torch.inf).view(batch, 1, heads * columns)
        left = chosen_tokens[:, None] * heads - sure.sum((1, 2))[:, None]
        return window | sure | best_columns(rest, left).view(batch, heads, columns)
