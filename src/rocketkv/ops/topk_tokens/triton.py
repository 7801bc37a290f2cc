# mypy: disable-error-code="no-untyped-def"
"""The best tokens on a GPU: bisect for the score of the last one taken, then write tokens in position order."""

from __future__ import annotations

import torch
import triton.language as tl

from rocketkv.ops.kernel.triton import block, kernel, launch, require
from rocketkv.types import Float, Int, Tensor

BLOCK_PAGES = 4096
"""Most pages whose scores one program keeps in registers."""


@kernel
def _sortable(score):
    """Numbers from 0 to 2^32 - 1 in the order of float32 scores; equal scores, zeros of both signs too, are equal."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@kernel
def _pages(scores, page, used, size, low, high):
    """Sortable scores of some pages, and how many of their tokens lie from `low` to `high`; none behind the last."""
    score = tl.load(scores + page, mask=page < used, other=float("-inf"))
    free = tl.minimum(page * size + size, high) - tl.maximum(page * size, low)
    return _sortable(score), tl.where(page < used, tl.maximum(free, 0), 0)


@kernel
def _topk(
    scores, lengths, page_tokens, counts, chosen, heads, pages, width, sink_tokens, local_tokens, BLOCK: tl.constexpr
):
    segment = tl.program_id(0).to(tl.int64)
    length, count = tl.load(lengths + segment).to(tl.int64), tl.load(counts + segment).to(tl.int64)
    size = tl.load(page_tokens + segment // heads).to(tl.int64)
    scores += segment * pages
    chosen += segment * width
    offset = tl.arange(0, BLOCK)
    # Tokens below `low` and from `high` on are always taken; where the count has no room, sinks come first.
    low = tl.minimum(tl.minimum(count, length), sink_tokens)
    high = tl.maximum(length - tl.minimum(tl.maximum(count - sink_tokens, 0), local_tokens), low)
    wanted = count - low - (length - high)
    used = (length + size - 1) // size

    # The largest threshold that at least `wanted` free tokens reach, bit by bit from the highest. The first block of
    # pages stays in registers; only a long segment has more.
    key, free = _pages(scores, offset, used, size, low, high)
    threshold = tl.zeros([1], tl.int64)
    for bit in range(0, 32):
        trial = threshold + (tl.full([1], 2147483648, tl.int64) >> bit)
        reached = tl.where(key >= trial, free, 0)
        for at in range(BLOCK, used, BLOCK):
            more, there = _pages(scores, at + offset, used, size, low, high)
            reached += tl.where(more >= trial, there, 0)
        threshold = tl.where(tl.sum(reached, 0) >= wanted, trial, threshold)

    above = tl.where(key > threshold, free, 0)
    for at in range(BLOCK, used, BLOCK):
        more, there = _pages(scores, at + offset, used, size, low, high)
        above += tl.where(more > threshold, there, 0)
    ties = wanted - tl.sum(above, 0)  # how many of those that score exactly the threshold are taken, from the front

    tied, written = tl.zeros([1], tl.int64), tl.zeros([1], tl.int64)
    for at in range(0, length, BLOCK):
        token = at + offset
        key = _sortable(tl.load(scores + token // size, mask=token < length, other=float("-inf")))
        always = (token < low) | (token >= high)
        equal = ((token < length) & (key == threshold) & ~always).to(tl.int64)
        first = tied + tl.cumsum(equal, 0) <= ties
        taken = (token < length) & (always | (key > threshold) | ((equal > 0) & first))
        place = written + tl.cumsum(taken.to(tl.int64), 0) - 1
        tl.store(chosen + place, token.to(tl.int64), mask=taken & (place < count))
        tied += tl.sum(equal, 0)
        written += tl.sum(taken.to(tl.int64), 0)


def topk_tokens(
    scores: Float[Tensor, "B G P"],
    lengths: Int[Tensor, "B G"],
    page_tokens: Int[Tensor, "B"],
    counts: Int[Tensor, "B G"],
    *,
    sink_tokens: int = 0,
    local_tokens: int = 0,
) -> Int[Tensor, "B G K"]:
    """`topk_tokens.reference.topk_tokens` on a GPU.

    Raises:
        BackendError: where the scores are not on a CUDA device, or not float32.
    """
    require("topk_tokens", scores)
    return topk_tokens_within(
        scores,
        lengths,
        page_tokens,
        counts,
        width=int(counts.max()),
        sink_tokens=sink_tokens,
        local_tokens=local_tokens,
    )


def topk_tokens_within(
    scores: Float[Tensor, "B G P"],
    lengths: Int[Tensor, "B G"],
    page_tokens: Int[Tensor, "B"],
    counts: Int[Tensor, "B G"],
    *,
    width: int,
    sink_tokens: int = 0,
    local_tokens: int = 0,
) -> Int[Tensor, "B G K"]:
    """Room for `width` tokens, at least as many as any count; nothing else in Python depends on lengths or counts."""
    batch, heads, pages = scores.shape
    chosen = torch.zeros(batch, heads, width, dtype=torch.int64, device=scores.device)
    launch(
        _topk,
        (batch * heads,),
        scores.float().contiguous(),
        lengths.contiguous(),
        page_tokens.contiguous(),
        counts.contiguous(),
        chosen,
        heads,
        pages,
        width,
        sink_tokens,
        local_tokens,
        BLOCK=block(pages, least=128, most=BLOCK_PAGES),
        num_warps=8,
    )
    return chosen
