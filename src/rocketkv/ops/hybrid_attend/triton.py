"""A whole step of hybrid sparse attention on a GPU: the kernels of the ops it is made of, one after the other."""

from __future__ import annotations

import torch

from rocketkv.ops.attend.triton import attend_split
from rocketkv.ops.hybrid_attend.reference import divided, whole_step
from rocketkv.ops.kernel.triton import require
from rocketkv.ops.page_bounds.reference import page_counts
from rocketkv.ops.page_scores.triton import page_scores_within
from rocketkv.ops.topk_tokens.triton import topk_tokens_within
from rocketkv.types import Candidates, Float, Int, PageBounds, RaggedKV, Tensor

__all__ = ["hybrid_attend", "hybrid_attend_within", "shares", "whole_step"]


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
    """`hybrid_attend.reference.hybrid_attend` on a GPU.

    Raises:
        BackendError: where a tensor is not on a CUDA device, or its dtype has no kernel.
    """
    rank, counts = shares(bounds, lengths, budget_tokens, q.shape[-1], estimate_share)
    pages = page_counts(bounds, lengths)
    out = hybrid_attend_within(
        q,
        kv,
        candidates,
        bounds,
        lengths,
        budget_tokens,
        pages=int(pages.max()),
        read=int(counts.max()),
        scaling=scaling,
        sink_tokens=sink_tokens,
        local_tokens=local_tokens,
        estimate_share=estimate_share,
    )
    elements = torch.where(counts < lengths, pages * rank, 0) + counts * (q.shape[-1] + kv.values.shape[-1])
    return out, int(elements.sum())


def hybrid_attend_within(
    q: Float[Tensor, "B G R D"],
    kv: RaggedKV,
    candidates: Candidates | None,
    bounds: PageBounds,
    lengths: Int[Tensor, "B G"],
    budget_tokens: Int[Tensor, "B"],
    *,
    pages: int,
    read: int,
    scaling: float,
    sink_tokens: int = 0,
    local_tokens: int = 0,
    estimate_share: float = 0.5,
) -> Float[Tensor, "B G R Dv"]:
    """The output alone, in shapes that no length changes: the device reads lengths, rank and counts.

    Args:
        pages: at least as many as any segment has.
        read: at least as many tokens as any segment reads; its row's t is enough.

    Raises:
        BackendError: where a tensor is not on a CUDA device, or its dtype has no kernel.
    """
    require("hybrid_attend", q, kv.keys, kv.values, bounds.data)
    rank, counts = shares(bounds, lengths, budget_tokens, q.shape[-1], estimate_share)
    scores = page_scores_within(q, bounds, lengths, rank=rank, scaling=scaling, width=pages)
    slots = topk_tokens_within(
        scores,
        lengths,
        bounds.page_tokens,
        counts,
        width=read,
        sink_tokens=sink_tokens,
        local_tokens=local_tokens,
    )
    if candidates is not None:
        slots = candidates.slots[candidates.starts[..., None] + slots]
    return attend_split(q, kv, slots, counts, width=read, scaling=scaling)


def shares(
    bounds: PageBounds,
    lengths: Int[Tensor, "B G"],
    budget_tokens: Int[Tensor, "B"],
    head_dim: int,
    estimate_share: float = 0.5,
) -> tuple[Int[Tensor, "B G"], Int[Tensor, "B G"]]:
    """Dimensions read of every page, t S D // lengths, and tokens read, t // 2 or all where there are at most t."""
    estimate, read = divided(budget_tokens, estimate_share)
    rank = (estimate[:, None] * bounds.page_tokens[:, None] * head_dim // lengths.clamp(min=1)).clamp(1, head_dim)
    return rank, torch.where(lengths <= budget_tokens[:, None], lengths, read[:, None].minimum(lengths))
