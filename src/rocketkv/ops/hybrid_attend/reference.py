"""A whole step of hybrid sparse attention over one layer: estimate, selection and exact attention, composed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rocketkv.budget import SHARE_SLACK
from rocketkv.ops.attend.reference import attend
from rocketkv.ops.page_scores.reference import page_scores
from rocketkv.ops.topk_tokens.reference import topk_tokens
from rocketkv.types import Candidates, Float, Int, PageBounds, RaggedKV, Tensor


def hybrid_attend(
    q: Float[Tensor, "B G R D"],
    kv: RaggedKV,
    candidates: Candidates | None,
    bounds: PageBounds,
    lengths: Int[Tensor, "B G"],
    budget_tokens: Int[Tensor, "B"],
    *,
    scaling: float,
    sink_tokens: int = 0,
    local_tokens: int = 0,
    estimate_share: float = 0.5,
) -> tuple[Float[Tensor, "B G R Dv"], int]:
    """Attention over the t // 2 tokens whose pages score highest; over all of a segment of at most t tokens.

    Args:
        candidates: which tokens of the store `bounds` and `lengths` are about; None for all of them.
        lengths: candidates of each segment.
        budget_tokens: t of each row. The rank is t S D // lengths, so that the estimate reads t / 2 pairs.
        estimate_share: another share of t than a half for the estimate; the rest is for the tokens attended.

    Returns:
        The output, and how many stored numbers were read: bounds, keys and values.

    Paper: second stage, hybrid sparse attention.
    """
    ops = page_scores, topk_tokens, attend
    options: dict[str, Any] = {"scaling": scaling, "sink_tokens": sink_tokens, "local_tokens": local_tokens}
    options["estimate_share"] = estimate_share
    return composed(ops, q, kv, candidates, bounds, lengths, budget_tokens, **options)


def divided(budget_tokens: Int[Tensor, "B"], estimate_share: float) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """`rocketkv.budget.divided` for each row."""
    if estimate_share == 0.5:
        return budget_tokens, budget_tokens // 2
    exact = budget_tokens.double()
    parts = [(exact * factor + SHARE_SLACK).long() for factor in (2 * estimate_share, 1 - estimate_share)]
    return parts[0], parts[1]


SPLIT_TOKENS = 2048
"""Budget from which one segment's step is long enough to be split among threads."""
Whole = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, int]]
"""(q [B, G, R, 1, D], keys [B, G, 1, D], values [B, G, 1, Dv]) -> output [B, G, R, 1, Dv], stored numbers read."""


def whole_step(
    kv: RaggedKV,
    candidates: Candidates | None,
    bounds: PageBounds,
    budget_tokens: Int[Tensor, "B"],
    *,
    scaling: float,
    sink_tokens: int = 0,
    local_tokens: int = 0,
    estimate_share: float = 0.5,
) -> Whole | None:
    """A decode step with nothing else due, as one call: take in one token per segment, then `hybrid_attend`.

    There must be room for the token. It counts kv.lengths (and candidates.lengths) up in place, and serves as long as
    these tables and the bounds are the ones it was given. None where the ops one by one are as good, as here.
    """
    return None


def composed(
    ops: tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[..., Tensor]],
    q: Float[Tensor, "B G R D"],
    kv: RaggedKV,
    candidates: Candidates | None,
    bounds: PageBounds,
    lengths: Int[Tensor, "B G"],
    budget_tokens: Int[Tensor, "B"],
    *,
    scaling: float,
    sink_tokens: int,
    local_tokens: int,
    estimate_share: float,
) -> tuple[Float[Tensor, "B G R Dv"], int]:
    """The step from any backend's page_scores, topk_tokens and attend."""
    score, choose, exact = ops
    head_dim, value_dim = q.shape[-1], kv.values.shape[-1]
    page_tokens, budget = bounds.page_tokens[:, None], budget_tokens[:, None]  # [B, 1]
    estimate, read = (part[:, None] for part in divided(budget_tokens, estimate_share))
    rank = (estimate * page_tokens * head_dim // lengths.clamp(min=1)).clamp(1, head_dim)  # [B, G]
    scores = score(q, bounds, lengths, rank=rank, scaling=scaling)
    counts = torch.where(lengths <= budget, lengths, read.clamp(max=lengths))
    slots = choose(scores, lengths, bounds.page_tokens, counts, sink_tokens=sink_tokens, local_tokens=local_tokens)
    if candidates is not None:
        slots = candidates.slots[candidates.starts[..., None] + slots].long()
    bounds_read = torch.where(counts < lengths, -(-lengths // page_tokens) * rank, 0)
    elements = (bounds_read + counts * (head_dim + value_dim)).sum()
    return exact(q, kv, slots, counts, scaling=scaling), int(elements)
