"""Quest's estimate on a CPU: both bounds of a dimension are streamed where the group's heads differ in sign."""

from __future__ import annotations

import numba
import numpy as np
import torch

from rocketkv.ops.kernel.cpu import bits, kernel, set_threads, table
from rocketkv.ops.page_scores.cpu import BLOCK_PAGES, add_rows, most_pages, spread
from rocketkv.ops.vector.cpu import padded, widened
from rocketkv.types import Float, Int, PageBounds, Tensor


def quest_scores(
    q: Float[Tensor, "B G R D"], bounds: PageBounds, lengths: Int[Tensor, "B G"], *, scaling: float
) -> tuple[Float[Tensor, "B G P"], int]:
    """The reference's scores, in float32, and the bound elements that were read.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    q_bits, data = bits("quest_scores", q), bits("quest_scores", bounds.data)
    held, sizes = table(lengths), table(bounds.page_tokens)
    scores = torch.empty(*q.shape[:2], most_pages(held, sizes), dtype=torch.float32, device="cpu")
    set_threads()
    elements = _scores(q_bits, data, table(bounds.upper), table(bounds.lower), table(bounds.pitch), sizes, held,
                       np.float32(scaling), scores.numpy())  # fmt: skip
    return scores, int(elements)


@kernel(parallel=True)
def _scores(q, data, upper, lower, pitch, page_tokens, lengths, scaling, out):  # type: ignore[no-untyped-def]
    heads, group, widest = q.shape[1], q.shape[2], out.shape[2]
    segments, blocks = q.shape[0] * heads, (widest + BLOCK_PAGES - 1) // BLOCK_PAGES
    logits = np.empty((segments, padded(group), widest), np.float32)
    elements = np.zeros(segments * blocks, np.int64)
    for task in numba.prange(segments * blocks):
        s, block = task // blocks, task % blocks
        b, g = s // heads, s % heads
        pages = (lengths[b, g] + page_tokens[b] - 1) // page_tokens[b]
        first, stop = block * BLOCK_PAGES, min(pages, (block + 1) * BLOCK_PAGES)
        if first < stop:
            rows, weights = _signed_rows(widened(q[b, g]), upper[b, g], lower[b, g], pitch[b, g], scaling)
            add_rows(data, rows, weights, first, stop, logits[s])
            elements[task] = rows.shape[0] * (stop - first)
    for s in numba.prange(segments):
        b, g = s // heads, s % heads
        spread(logits[s], group, page_tokens[b], lengths[b, g], out[b, g])
    return elements.sum()


@kernel()
def _signed_rows(q, upper, lower, pitch, scaling):  # type: ignore[no-untyped-def]
    """The rows that some head needs: maxima for its positive dimensions, minima for its negative ones."""
    group, head_dim = q.shape
    rows, weights = np.empty(2 * head_dim, np.int64), np.zeros((group, 2 * head_dim), np.float32)
    n = 0
    for d in range(head_dim):
        low, high = q[:, d].min(), q[:, d].max()
        if lower == upper:  # one token per page: both bounds are its key
            if low < 0 or high > 0:
                rows[n] = upper + d * pitch
                for r in range(group):
                    weights[r, n] = q[r, d] * scaling
                n += 1
            continue
        if high > 0:
            rows[n] = upper + d * pitch
            for r in range(group):
                weights[r, n] = max(q[r, d], np.float32(0)) * scaling
            n += 1
        if low < 0:
            rows[n] = lower + d * pitch
            for r in range(group):
                weights[r, n] = min(q[r, d], np.float32(0)) * scaling
            n += 1
    return rows[:n], weights[:, :n]
