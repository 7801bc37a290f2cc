"""Hybrid sparse attention (Behnam et al., ICML 2025, arXiv:2502.14051): pages by bounds of few head dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rocketkv.budget import page_tokens_for
from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Selection, Selector, Step
from rocketkv.types import Float, Tensor


@final
@dataclass(frozen=True)
class HybridTopK(Selector):
    """Reads t // 2 tokens of the pages that score highest, and spends the other half of t on scoring them.

    Args:
        sink_tokens, local_tokens: first and newest tokens that are always read, inside the budget; 0 in the paper.
    """

    sink_tokens: int = 0
    local_tokens: int = 0

    def __post_init__(self) -> None:
        if self.sink_tokens < 0 or self.local_tokens < 0:
            raise ValueError(
                f"sink_tokens={self.sink_tokens}, local_tokens={self.local_tokens}: give 0 or more of each"
            )

    @property
    def hybrid_options(self) -> dict[str, int] | None:
        return {"sink_tokens": self.sink_tokens, "local_tokens": self.local_tokens}

    def layout(self, budget_tokens: int, tokens: int) -> tuple[int, int] | None:
        return page_tokens_for(tokens, budget_tokens), 2 * tokens

    def least_rank(self, budget_tokens: int, page_tokens: int, head_dim: int, tokens: int) -> bool:
        return budget_tokens * page_tokens * head_dim < tokens

    def bounds_share(self, shrink_factor: float, split: float) -> float:
        return shrink_factor ** (-(1 + split) / 2)

    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        bounds, lengths, head_dim = step.bounds, step.lengths, q.shape[-1]
        assert bounds is not None, "a step that selects by pages has laid them out"
        page_tokens, budget = bounds.page_tokens[:, None], step.budget_tokens[:, None]  # [B, 1]
        # Taken from the tokens of this step, so that the estimate stays at t / 2 while the answer grows.
        rank = (budget * page_tokens * head_dim // lengths.clamp(min=1)).clamp(1, head_dim)  # [B, G]
        scores = op("page_scores", "page_scores", step.backend)(q, bounds, lengths, rank=rank, scaling=step.scaling)
        counts = step.read_counts(step.budget_tokens // 2)
        tokens = op("topk_tokens", "topk_tokens", step.backend)(
            scores, lengths, bounds.page_tokens, counts, sink_tokens=self.sink_tokens, local_tokens=self.local_tokens
        )
        pages = -(-lengths // page_tokens)
        return Selection(tokens, counts, int((pages * rank).sum()))
