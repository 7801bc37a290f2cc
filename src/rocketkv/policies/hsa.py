"""Hybrid sparse attention (Behnam et al., ICML 2025, arXiv:2502.14051): pages by bounds of few head dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from rocketkv.budget import check_estimate_share, divided, page_tokens_for
from rocketkv.ops.dispatch import op
from rocketkv.ops.hybrid_attend.reference import divided as divided_rows
from rocketkv.policies.base import Selection, Selector, Step
from rocketkv.types import Float, Tensor


@final
@dataclass(frozen=True)
class HybridTopK(Selector):
    """Reads t // 2 tokens of the pages that score highest, and spends the other half of t on scoring them.

    Args:
        sink_tokens, local_tokens: first and newest tokens that are always read, inside the budget; 0 in the paper.
        estimate_share: another share of t than the paper's half for the scoring; the rest is read. Pages stay those of
            the paper, so that storage does too; the rank changes.
    """

    sink_tokens: int = 0
    local_tokens: int = 0
    estimate_share: float = 0.5

    def __post_init__(self) -> None:
        if self.sink_tokens < 0 or self.local_tokens < 0:
            raise ValueError(
                f"sink_tokens={self.sink_tokens}, local_tokens={self.local_tokens}: give 0 or more of each"
            )
        check_estimate_share(self.estimate_share)

    @property
    def hybrid_options(self) -> dict[str, Any] | None:
        return {
            "sink_tokens": self.sink_tokens,
            "local_tokens": self.local_tokens,
            "estimate_share": self.estimate_share,
        }

    def layout(self, budget_tokens: int, tokens: int) -> tuple[int, int] | None:
        return page_tokens_for(tokens, budget_tokens), 2 * tokens

    def least_rank(self, budget_tokens: int, page_tokens: int, head_dim: int, tokens: int) -> bool:
        return divided(budget_tokens, self.estimate_share)[0] * page_tokens * head_dim < tokens

    def bounds_share(self, shrink_factor: float, split: float) -> float:
        return shrink_factor ** (-(1 + split) / 2)

    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        bounds, lengths, head_dim = step.bounds, step.lengths, q.shape[-1]
        assert bounds is not None, "a step that selects by pages has laid them out"
        page_tokens = bounds.page_tokens[:, None]  # [B, 1]
        estimate, read = divided_rows(step.budget_tokens, self.estimate_share)  # [B]
        # Taken from the tokens of this step, so that the estimate stays at its share of t while the answer grows.
        rank = (estimate[:, None] * page_tokens * head_dim // lengths.clamp(min=1)).clamp(1, head_dim)  # [B, G]
        scores = op("page_scores", "page_scores", step.backend)(q, bounds, lengths, rank=rank, scaling=step.scaling)
        counts = step.read_counts(read)
        tokens = op("topk_tokens", "topk_tokens", step.backend)(
            scores, lengths, bounds.page_tokens, counts, sink_tokens=self.sink_tokens, local_tokens=self.local_tokens
        )
        pages = -(-lengths // page_tokens)
        return Selection(tokens, counts, int((pages * rank).sum()))
