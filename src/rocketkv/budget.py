"""Budget arithmetic: how one number, the token budget, becomes a plan. Pure: integers and floats in, values out.

Letters as in docs/notation.md: L = context + planned tokens, t = budget_tokens, c = L / t, r = the split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_BUDGET_TOKENS = 16
LEAST_SHARE = 1 / MIN_BUDGET_TOKENS
"""Of the budget, for estimating and for attending alike: the least budget leaves one token to each."""
SHARE_SLACK = 1e-6
"""A share of a budget that is a whole number may come out a rounding error below itself."""


@dataclass(frozen=True)
class Plan:
    """What one row of a batch keeps and reads, for one prompt. All counts are tokens per KV head.

    `floors` names the lower bounds that decided `kept_tokens` ("budget", "window"), empty when the formula did.
    A dense plan keeps and reads everything, through the model's own attention.
    """

    context_tokens: int
    new_tokens: int
    budget_tokens: int
    head_dim: int
    dense: bool
    split: float
    kept_tokens: int
    page_tokens: int
    rank: int
    read_tokens: int
    floors: tuple[str, ...] = ()

    @property
    def total_tokens(self) -> int:
        """L: prompt and planned tokens together."""
        return self.context_tokens + self.new_tokens

    @property
    def capacity_tokens(self) -> int:
        """Kept tokens and planned tokens together: what the store holds when the planned answer is complete."""
        return self.kept_tokens + self.new_tokens

    @property
    def shrink_factor(self) -> float:
        """c = L / t, the factor by which the traffic of one step shrinks."""
        return self.total_tokens / self.budget_tokens


def check_budget_tokens(budget_tokens: int) -> None:
    """Raise ValueError unless `budget_tokens` is an integer that leaves something to select."""
    if isinstance(budget_tokens, bool) or not isinstance(budget_tokens, int):
        raise ValueError(f"budget_tokens={budget_tokens!r} is not a whole number of tokens: give an integer")
    if budget_tokens < MIN_BUDGET_TOKENS:
        raise ValueError(
            f"budget_tokens={budget_tokens} is below {MIN_BUDGET_TOKENS}, the least that leaves anything to select: "
            "raise the budget"
        )


def check_split(split: float | None) -> None:
    """Raise ValueError unless `split` is None (adaptive) or lies in [0, 1]."""
    if split is None:
        return
    if isinstance(split, bool) or not isinstance(split, int | float) or not 0 <= split <= 1:
        raise ValueError(f"split={split!r} is outside 0 to 1: give a number in that range, or None for adaptive")


def check_estimate_share(share: float) -> None:
    """Raise ValueError unless a step that gives `share` of its budget to estimating can do both."""
    number = isinstance(share, int | float) and not isinstance(share, bool)
    if not number or not LEAST_SHARE <= share <= 1 - LEAST_SHARE:
        raise ValueError(
            f"estimate_share={share!r} is outside {LEAST_SHARE:g} to {1 - LEAST_SHARE:g}: give a number in that range; "
            "0.5 is the paper's"
        )


def divided(budget_tokens: int, estimate_share: float = 0.5) -> tuple[int, int]:
    """t for the rank's formula, scaled so that the estimate reads its share, and the tokens attended: (t, t // 2)."""
    scaled = int(budget_tokens * (2 * estimate_share) + SHARE_SLACK)
    return scaled, int(budget_tokens * (1 - estimate_share) + SHARE_SLACK)


def adaptive_split(shrink_factor: float) -> float:
    """r = min(0.2 + 0.06 log2 c, 0.8): the share (of the exponent) that eviction takes.

    Paper: adaptive compression decomposition.
    """
    return min(0.2 + 0.06 * math.log2(shrink_factor), 0.8)


def page_tokens_for(tokens: int, budget_tokens: int) -> int:
    """S = ceil(sqrt(c2)) for c2 = tokens / budget, but 1 where that exceeds c2."""
    c2 = max(1.0, tokens / budget_tokens)
    page = math.ceil(math.sqrt(c2))
    return 1 if page > c2 else page


def rank_at(tokens: int, *, budget_tokens: int, page_tokens: int, head_dim: int) -> int:
    """Head dimensions read per page at a step that holds `tokens`: t S D // T, within 1 to D."""
    return min(max(budget_tokens * page_tokens * head_dim // max(tokens, 1), 1), head_dim)


def make_plan(
    context_tokens: int,
    *,
    budget_tokens: int,
    head_dim: int,
    new_tokens: int = 0,
    window_tokens: int = 32,
    split: float | None = None,
    estimate_share: float = 0.5,
) -> Plan:
    """Split the compression of one prompt between eviction and selection.

    Args:
        context_tokens: tokens of the prompt (of the whole conversation, from the second turn on), at least 1.
        budget_tokens: t, the traffic of one step per KV head, in key-value pairs; at least 16.
        head_dim: D, the size of a key.
        new_tokens: N, a planned generation length; 0 unless the caller plans one. It is not the stop limit.
        window_tokens: W, the observation window, which is always kept.
        split: r in [0, 1] instead of the adaptive rule.
        estimate_share: what a step spends of t on choosing the tokens that it attends to.

    Raises:
        ValueError: with the number and the limit, when an argument is out of range.

    Paper: adaptive compression decomposition and the two stage ratios. Differs: a budget that the sequence never
    exceeds gives a dense plan, and kept_tokens has floors (docs/decisions/0001 and 0002).
    """
    check_budget_tokens(budget_tokens)
    check_split(split)
    check_estimate_share(estimate_share)
    for name, value, least in (
        ("context_tokens", context_tokens, 1),
        ("new_tokens", new_tokens, 0),
        ("head_dim", head_dim, 1),
        ("window_tokens", window_tokens, 0),
    ):
        if value < least:
            raise ValueError(f"{name}={value} is below {least}: give at least {least}")
    sizes = context_tokens, new_tokens, budget_tokens, head_dim
    if context_tokens + new_tokens <= budget_tokens:
        return _dense_plan(*sizes)
    return _sparse_plan(*sizes, window_tokens, split, estimate_share)


def _dense_plan(context_tokens: int, new_tokens: int, budget_tokens: int, head_dim: int) -> Plan:
    """Everything kept and read."""
    return Plan(
        context_tokens,
        new_tokens,
        budget_tokens,
        head_dim,
        dense=True,
        split=0.0,
        kept_tokens=context_tokens,
        page_tokens=1,
        rank=head_dim,
        read_tokens=context_tokens + new_tokens,
    )


def _sparse_plan(
    context_tokens: int,
    new_tokens: int,
    budget_tokens: int,
    head_dim: int,
    window_tokens: int,
    split: float | None,
    estimate_share: float,
) -> Plan:
    """What the formulas keep and read, floors included."""
    total = context_tokens + new_tokens
    c = total / budget_tokens
    r = adaptive_split(c) if split is None else float(split)
    # A whole number may come out a rounding error below itself: split 1 keeps t, not t - 1.
    by_formula = math.floor(total / c**r + 1e-6) - new_tokens
    kept = max(by_formula, budget_tokens, window_tokens + 1)
    floors = []
    if kept > by_formula and context_tokens > by_formula:
        floors.append("budget" if kept == budget_tokens else "window")
    kept = min(kept, context_tokens)
    page = page_tokens_for(kept + new_tokens, budget_tokens)
    estimate, read = divided(budget_tokens, estimate_share)
    return Plan(
        context_tokens,
        new_tokens,
        budget_tokens,
        head_dim,
        dense=False,
        split=r,
        kept_tokens=kept,
        page_tokens=page,
        rank=rank_at(kept + new_tokens, budget_tokens=estimate, page_tokens=page, head_dim=head_dim),
        read_tokens=read,
        floors=tuple(floors),
    )


def storage_paper(shrink_factor: float, split: float) -> float:
    """RocketKV's storage over a full cache's, as the paper prints it: 1/c^r + 2/c^((1+r)/2); 1 if c <= 1.

    Paper: complexity table. It counts the page bounds twice.
    """
    return _storage(shrink_factor, split, bounds_weight=2)


def storage_derived(shrink_factor: float, split: float) -> float:
    """RocketKV's storage over a full cache's, as it is held: one key maximum and one minimum per page."""
    return _storage(shrink_factor, split, bounds_weight=1)


def _storage(shrink_factor: float, split: float, *, bounds_weight: int) -> float:
    if shrink_factor <= 1:
        return 1.0
    return shrink_factor**-split + bounds_weight * shrink_factor ** (-(1 + split) / 2)


def traffic(shrink_factor: float) -> float:
    """Memory read in one step over a full cache's: 1/c, for every method charged for its estimate."""
    return min(1.0, 1 / shrink_factor)


def held_pairs(plan: Plan) -> float:
    """Key-value pairs that one KV head holds when the planned answer is complete, bounds included.

    A page's maximum and minimum are one pair; at one token a page both are its key, held once.
    """
    if plan.dense:
        return plan.total_tokens
    pages = -(-plan.capacity_tokens // plan.page_tokens)
    return plan.capacity_tokens + pages * (0.5 if plan.page_tokens == 1 else 1.0)


def step_pairs(plan: Plan) -> float:
    """Key-value pairs' worth of memory that a step reads for one KV head, the planned answer complete."""
    if plan.dense:
        return plan.total_tokens
    pages = -(-plan.capacity_tokens // plan.page_tokens)
    return pages * plan.rank / (2 * plan.head_dim) + plan.read_tokens
