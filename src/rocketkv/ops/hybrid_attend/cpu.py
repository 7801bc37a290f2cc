"""A whole step of hybrid sparse attention on a CPU in one call, each segment from its scores to its output.

The arithmetic is that of the ops it is made of, block by block, so that both ways give the same bits.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from rocketkv.budget import SHARE_SLACK
from rocketkv.ops.attend.cpu import BLOCK_TOKENS, attend, attend_block, merge
from rocketkv.ops.hybrid_attend.reference import composed
from rocketkv.ops.kernel.cpu import bits, kernel, set_threads, table
from rocketkv.ops.page_scores.cpu import BLOCK_PAGES, add_rows, chosen_rows, page_scores, spread
from rocketkv.ops.topk_tokens.cpu import best_tokens, topk_tokens
from rocketkv.ops.vector.cpu import widened
from rocketkv.types import Candidates, Float, Int, PageBounds, RaggedKV, Tensor

SPLIT_TOKENS = 2048
"""Budget from which one segment's step is long enough to be split among threads."""
NO_SLOTS = np.empty(0, np.int32)


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
    """The reference's output, summed in float32, and the stored numbers that were read.

    A segment is one task where there are enough of them; fewer than threads are split up, op by op, from budgets of
    SPLIT_TOKENS.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    name = "hybrid_attend"
    out = torch.empty(*q.shape[:3], kv.values.shape[1])
    slots = NO_SLOTS if candidates is None else candidates.slots.numpy()
    slot_starts = table(kv.starts if candidates is None else candidates.starts)
    if lengths.numel() < set_threads() and int(budget_tokens.max()) >= SPLIT_TOKENS:
        ops = page_scores, topk_tokens, attend
        options: dict[str, Any] = {"scaling": scaling, "sink_tokens": sink_tokens, "local_tokens": local_tokens}
        options["estimate_share"] = estimate_share
        return composed(ops, q, kv, candidates, bounds, lengths, budget_tokens, **options)
    elements = _step(
        bits(name, q), bits(name, kv.keys), bits(name, kv.values), table(kv.starts), slots, slot_starts,
        bits(name, bounds.data), table(bounds.upper), table(bounds.lower), table(bounds.pitch),
        table(bounds.page_tokens), table(lengths), table(budget_tokens), np.float32(scaling),
        2 * estimate_share, 1 - estimate_share, sink_tokens, local_tokens, out.numpy(),
    )  # fmt: skip
    return out if q.dtype == torch.float32 else out.to(q.dtype), int(elements)


@kernel(parallel=True)
def _step(  # type: ignore[no-untyped-def]
    q, keys, values, starts, slots, slot_starts, data, upper, lower, pitch, page_tokens, lengths, budgets, scaling,
    estimate_part, read_part, sink, local, out,
):  # fmt: skip
    heads, head_dim, width = q.shape[1], q.shape[3], values.shape[1]
    elements = np.zeros(q.shape[0] * heads, np.int64)
    for s in numba.prange(q.shape[0] * heads):
        b, g = s // heads, s % heads
        length, size, budget = lengths[b, g], page_tokens[b], budgets[b]
        count = length if length <= budget else min(np.int64(budget * read_part + SHARE_SLACK), length)
        rank = min(max(np.int64(budget * estimate_part + SHARE_SLACK) * size * head_dim // max(length, 1), 1), head_dim)
        query = widened(q[b, g])
        tokens = np.empty(count, np.int64)
        elements[s] = count * (head_dim + width)
        if count < length:
            elements[s] += (length + size - 1) // size * rank
            scores = _estimate(query, data, upper[b, g], lower[b, g], pitch[b, g], size, length, rank, scaling)
            best_tokens(scores, length, size, count, sink, local, tokens)
        else:
            for i in range(count):
                tokens[i] = i
        if slots.shape[0] > 0:
            for i in range(count):
                tokens[i] = slots[slot_starts[b, g] + tokens[i]]
        _exact(query, keys, values, starts[b, g], tokens, scaling, out[b, g])
    return elements.sum()


@kernel()
def _estimate(q, data, upper, lower, pitch, page_tokens, length, rank, scaling):  # type: ignore[no-untyped-def]
    """Scores of one segment's pages."""
    pages = (length + page_tokens - 1) // page_tokens
    logits, scores = np.empty((q.shape[0], pages), np.float32), np.empty(pages, np.float32)
    rows, weights = chosen_rows(q, upper, lower, pitch, rank, scaling)
    for first in range(0, pages, BLOCK_PAGES):
        add_rows(data, rows, weights, first, min(pages, first + BLOCK_PAGES), logits)
    spread(logits, page_tokens, length, scores)
    return scores


@kernel()
def _exact(q, keys, values, start, tokens, scaling, out):  # type: ignore[no-untyped-def]
    """Attention of one segment over its chosen tokens."""
    count = tokens.shape[0]
    blocks = (count + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    parts = np.empty((max(blocks, 1), q.shape[0], values.shape[1] + 2), np.float32)
    for block in range(blocks):
        first = block * BLOCK_TOKENS
        chosen = tokens[first : min(count, first + BLOCK_TOKENS)]
        attend_block(q, keys, values, start, chosen, scaling, parts[block])
    merge(parts, blocks, out)
