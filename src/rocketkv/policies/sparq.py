"""SparQ (Ribar et al., ICML 2024, arXiv:2312.04985): keep all, estimate by few dimensions of every key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Selection, Selector, Step
from rocketkv.types import Float, Tensor


@final
@dataclass(frozen=True)
class SparQ(Selector):
    """Reads t // 2 tokens; the other half of t reads t D // T dimensions of all keys, at least one.

    It is hybrid sparse attention at one token per page. Keys are held twice, the second time dimension-major.

    Args:
        mean_value: give the attention that the chosen tokens are estimated to miss to the mean of all values.
    """

    mean_value: bool = False

    @property
    def means_values(self) -> bool:
        return self.mean_value

    @property
    def hybrid_options(self) -> dict[str, int] | None:
        return None if self.mean_value else {}

    def layout(self, budget_tokens: int, tokens: int) -> tuple[int, int] | None:
        return 1, 1 << 62

    def least_rank(self, budget_tokens: int, page_tokens: int, head_dim: int, tokens: int) -> bool:
        return budget_tokens * head_dim < tokens

    def bounds_share(self, shrink_factor: float, split: float) -> float:
        return 0.5 * shrink_factor**-split

    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        assert step.bounds is not None, "a step that selects by pages has laid them out"
        head_dim, lengths = q.shape[-1], step.lengths
        rank = (step.budget_tokens[:, None] * head_dim // lengths.clamp(min=1)).clamp(1, head_dim)
        scores = op("page_scores", "page_scores", step.backend)(
            q, step.bounds, lengths, rank=rank, scaling=step.scaling
        )
        counts = step.read_counts(step.budget_tokens // 2)
        tokens = op("topk_tokens", "topk_tokens", step.backend)(scores, lengths, step.bounds.page_tokens, counts)
        mass = None
        if self.mean_value:
            read = torch.arange(tokens.shape[-1], device=q.device) < counts[..., None]
            # The group's heads choose together, so they share the estimate of what they miss.
            mass = scores.gather(-1, tokens).masked_fill(~read, 0).sum(-1)[..., None].expand(q.shape[:3])
        return Selection(tokens, counts, int((lengths * rank).sum()), mass)
