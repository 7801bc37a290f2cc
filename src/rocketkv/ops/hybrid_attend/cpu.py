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
from rocketkv.ops.hybrid_attend.reference import SPLIT_TOKENS, composed
from rocketkv.ops.kernel.cpu import alike, bits, kernel, set_threads, table
from rocketkv.ops.page_bounds.cpu import take_key
from rocketkv.ops.page_scores.cpu import BLOCK_PAGES, add_rows, chosen_rows, page_scores, spread
from rocketkv.ops.topk_tokens.cpu import best_tokens, topk_tokens
from rocketkv.ops.vector.cpu import widened
from rocketkv.types import Candidates, Float, Int, PageBounds, RaggedKV, Tensor

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
    out = torch.empty(*q.shape[:3], kv.values.shape[1], dtype=torch.float32, device="cpu")
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
) -> WholeStep | None:
    """The reference's step in one kernel; None where a segment is worth splitting among threads.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    if kv.lengths.numel() < set_threads() and int(budget_tokens.max()) >= SPLIT_TOKENS:
        return None
    options = np.float32(scaling), 2 * estimate_share, 1 - estimate_share, sink_tokens, local_tokens
    return WholeStep(kv, candidates, bounds, budget_tokens, options)


class WholeStep:
    """Append, bounds, selection and attention of one token per segment; what stays in place is looked up once."""

    def __init__(
        self,
        kv: RaggedKV,
        candidates: Candidates | None,
        bounds: PageBounds,
        budget_tokens: Int[Tensor, "B"],
        options: tuple[Any, ...],
    ) -> None:
        name = "hybrid_attend"
        tables = kv if candidates is None else candidates
        self._stored = bits(name, kv.keys), bits(name, kv.values), table(kv.starts), table(kv.lengths)
        self._chosen = NO_SLOTS if candidates is None else candidates.slots.numpy(), table(tables.starts)
        self._counted = table(tables.lengths)
        self._bounds = bits(name, bounds.data), table(bounds.upper), table(bounds.lower), table(bounds.pitch)
        self._sizes = table(bounds.page_tokens), table(budget_tokens)
        self._options = options
        self._kept = kv.keys, kv.values

    def __call__(
        self, q: Float[Tensor, "B G R 1 D"], keys: Float[Tensor, "B G 1 D"], values: Float[Tensor, "B G 1 Dv"]
    ) -> tuple[Float[Tensor, "B G R 1 Dv"], int]:
        """Take one token per segment, and attend: the output, and the stored numbers that were read."""
        name, (kept_keys, kept_values) = "hybrid_attend", self._kept
        alike(name, keys, kept_keys)
        alike(name, values, kept_values)
        out = np.empty((*q.shape[:4], kept_values.shape[1]), np.float32)
        set_threads()
        elements = _whole(
            bits(name, q), bits(name, keys), bits(name, values), *self._stored, *self._chosen, self._counted,
            *self._bounds, *self._sizes, *self._options, out,
        )  # fmt: skip
        attended = torch.from_numpy(out)
        return attended if q.dtype == torch.float32 else attended.to(q.dtype), int(elements)


@kernel(parallel=True)
def _whole(  # type: ignore[no-untyped-def]
    q, new_keys, new_values, keys, values, starts, stored, slots, slot_starts, counted, data, upper, lower, pitch,
    page_tokens, budgets, scaling, estimate_part, read_part, sink, local, out,
):  # fmt: skip
    heads, group, head_dim, width = q.shape[1], q.shape[2], q.shape[4], out.shape[4]
    elements = np.zeros(q.shape[0] * heads, np.int64)
    for s in numba.prange(q.shape[0] * heads):
        b, g = s // heads, s % heads
        at = starts[b, g] + stored[b, g]
        keys[at] = new_keys[b, g, 0]
        values[at] = new_values[b, g, 0]
        if slots.shape[0] > 0:
            slots[slot_starts[b, g] + counted[b, g]] = stored[b, g]
            stored[b, g] += 1
        place = upper[b, g], lower[b, g], pitch[b, g]
        take_key(data, place, page_tokens[b], new_keys[b, g, 0], counted[b, g])
        counted[b, g] += 1
        elements[s] = _segment(
            q[b, g].reshape(group, head_dim), keys, values, starts[b, g], slots, slot_starts[b, g], data, place,
            page_tokens[b], counted[b, g], budgets[b], scaling, estimate_part, read_part, sink, local,
            out[b, g].reshape(group, width),
        )  # fmt: skip
    return elements.sum()


@kernel(parallel=True)
def _step(  # type: ignore[no-untyped-def]
    q, keys, values, starts, slots, slot_starts, data, upper, lower, pitch, page_tokens, lengths, budgets, scaling,
    estimate_part, read_part, sink, local, out,
):  # fmt: skip
    heads = q.shape[1]
    elements = np.zeros(q.shape[0] * heads, np.int64)
    for s in numba.prange(q.shape[0] * heads):
        b, g = s // heads, s % heads
        place = upper[b, g], lower[b, g], pitch[b, g]
        elements[s] = _segment(
            q[b, g], keys, values, starts[b, g], slots, slot_starts[b, g], data, place, page_tokens[b], lengths[b, g],
            budgets[b], scaling, estimate_part, read_part, sink, local, out[b, g],
        )  # fmt: skip
    return elements.sum()


@kernel()
def _segment(  # type: ignore[no-untyped-def]
    q, keys, values, start, slots, slot_start, data, place, size, length, budget, scaling, estimate_part, read_part,
    sink, local, out,
):  # fmt: skip
    """One segment's step; returns the stored numbers that were read."""
    head_dim = q.shape[1]
    count = length if length <= budget else min(np.int64(budget * read_part + SHARE_SLACK), length)
    rank = min(max(np.int64(budget * estimate_part + SHARE_SLACK) * size * head_dim // max(length, 1), 1), head_dim)
    query = widened(q)
    tokens = np.empty(count, np.int64)
    elements = count * (head_dim + values.shape[1])
    if count < length:
        elements += (length + size - 1) // size * rank
        scores = _estimate(query, q.shape[0], data, place, size, length, rank, scaling)
        best_tokens(scores, length, size, count, sink, local, tokens)
    else:
        for i in range(count):
            tokens[i] = i
    if slots.shape[0] > 0:
        for i in range(count):
            tokens[i] = slots[slot_start + tokens[i]]
    _exact(query, keys, values, start, tokens, scaling, out)
    return elements


@kernel()
def _estimate(q, group, data, place, page_tokens, length, rank, scaling):  # type: ignore[no-untyped-def]
    """Scores of one segment's pages."""
    pages = (length + page_tokens - 1) // page_tokens
    logits, scores = np.empty((q.shape[0], pages), np.float32), np.empty(pages, np.float32)
    rows, weights = chosen_rows(q, *place, rank, scaling)
    for first in range(0, pages, BLOCK_PAGES):
        add_rows(data, rows, weights, first, min(pages, first + BLOCK_PAGES), logits)
    spread(logits, group, page_tokens, length, scores)
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
        attend_block(q, keys, values, start, chosen, scaling, out.shape[0], parts[block])
    merge(parts, blocks, out)
