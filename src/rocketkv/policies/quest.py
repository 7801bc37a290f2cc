"""Quest (Tang et al., ICML 2024, arXiv:2406.10774): keep all, read the pages whose bounds promise most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Selection, Selector, Step
from rocketkv.types import Float, Tensor


@final
@dataclass(frozen=True)
class QuestPages(Selector):
    """Reads t // 2 tokens of the best pages; pages of ceil(T / t) tokens, so that their bounds cost t / 2.

    Args:
        page_tokens: a fixed page size instead; Quest's own is 16.
        charge_bounds: whether reading the bounds is paid from the budget. Without it, t tokens are read.

    Where the heads of a group differ in a dimension's sign both bounds are read: up to 1.5 t in all. The report counts
    what was read.
    """

    page_tokens: int | None = None
    charge_bounds: bool = True

    def __post_init__(self) -> None:
        if self.page_tokens is not None and self.page_tokens < 1:
            raise ValueError(f"page_tokens={self.page_tokens} is below 1: give the tokens of a page, 16 in Quest")

    def layout(self, budget_tokens: int, tokens: int) -> tuple[int, int] | None:
        if self.page_tokens is not None:
            return self.page_tokens, 1 << 62
        page = -(-tokens // budget_tokens)
        return page, page * budget_tokens

    def bounds_share(self, shrink_factor: float, split: float) -> float:
        return 1 / shrink_factor if self.page_tokens is None else shrink_factor**-split / self.page_tokens

    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        assert step.bounds is not None, "a step that selects by pages has laid them out"
        scores, elements = op("quest_scores", "quest_scores", step.backend)(
            q, step.bounds, step.lengths, scaling=step.scaling
        )
        counts = step.read_counts(step.budget_tokens // 2 if self.charge_bounds else step.budget_tokens)
        tokens = op("topk_tokens", "topk_tokens", step.backend)(scores, step.lengths, step.bounds.page_tokens, counts)
        return Selection(tokens, counts, elements)
