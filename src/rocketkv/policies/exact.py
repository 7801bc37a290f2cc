"""Exact-TopK, the oracle (Behnam et al., ICML 2025, arXiv:2502.14051): keep all, read what receives most attention.

The estimate is exact and not charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch

from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Selection, Selector, Step
from rocketkv.types import Float, Int, Tensor


@final
@dataclass(frozen=True)
class ExactTopK(Selector):
    """Reads the t tokens with the highest exact scores.

    Args:
        per: "head" lets every query head read its own t tokens, as the paper's oracle; "group" lets the heads of a
            group read the t tokens with the highest mean attention, as the other methods do.
    """

    per: Literal["head", "group"] = "head"

    def __post_init__(self) -> None:
        if self.per not in ("head", "group"):
            raise ValueError(f"per={self.per!r} is unknown: choose head or group")

    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        probabilities = exact_probabilities(q, step)  # [B, G, R, T]
        counts = step.read_counts(step.budget_tokens)
        if self.per == "head":
            scores, lengths = probabilities.flatten(1, 2), step.lengths.repeat_interleave(q.shape[2], dim=1)
            counts = counts.repeat_interleave(q.shape[2], dim=1)
        else:
            scores, lengths = probabilities.mean(2), step.lengths
        single = torch.ones_like(step.budget_tokens)
        tokens = op("topk_tokens", "topk_tokens", step.backend)(scores, lengths, single, counts)
        return Selection(tokens, counts, 0)


def exact_probabilities(q: Float[Tensor, "B G R D"], step: Step) -> Float[Tensor, "B G R T"]:
    """The attention that each candidate really receives; minus infinity where no candidate is."""
    keys, held = step.keys()
    return token_probabilities(q, keys, step.lengths, step.scaling).masked_fill(~held[:, :, None], -torch.inf)


def token_probabilities(
    q: Float[Tensor, "B G R d"], keys: Float[Tensor, "B G T d"], lengths: Int[Tensor, "B G"], scaling: float
) -> Float[Tensor, "B G R T"]:
    """Softmax of q keys^T over the first `lengths` tokens, in float32 (float64 for float64 input); 0 behind them."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    logits = q.to(dtype) @ keys.to(dtype).transpose(-1, -2) * scaling
    held = torch.arange(keys.shape[2], device=q.device) < lengths[:, :, None, None]
    return logits.masked_fill(~held, torch.finfo(dtype).min).softmax(-1) * held
