"""Hybrid sparse attention's estimate on a CPU: rows of bounds are streamed once, pages in blocks."""

from __future__ import annotations

import numba
import numpy as np
import torch

from rocketkv.ops.kernel.cpu import bits, kernel, set_threads, table
from rocketkv.ops.vector.cpu import add1, add4, exponentials, fetch_row, peak, widened
from rocketkv.types import Float, Int, PageBounds, Tensor

BLOCK_PAGES = 2048
"""Pages scored at a time: their logits and four rows of bounds stay in the second-level cache."""


def page_scores(
    q: Float[Tensor, "B G R D"],
    bounds: PageBounds,
    lengths: Int[Tensor, "B G"],
    *,
    rank: Int[Tensor, "B G"],
    scaling: float,
) -> Float[Tensor, "B G P"]:
    """The reference's scores, in float32.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    q_bits, data = bits("page_scores", q), bits("page_scores", bounds.data)
    held, sizes = table(lengths), table(bounds.page_tokens)
    scores = torch.empty(*q.shape[:2], most_pages(held, sizes))
    set_threads()
    _scores(q_bits, data, table(bounds.upper), table(bounds.lower), table(bounds.pitch), sizes, held, table(rank),
            np.float32(scaling), scores.numpy())  # fmt: skip
    return scores


@kernel()
def most_pages(lengths, page_tokens):  # type: ignore[no-untyped-def]
    """Pages of the segment that has most."""
    most = 0
    for b in range(lengths.shape[0]):
        for g in range(lengths.shape[1]):
            most = max(most, (lengths[b, g] + page_tokens[b] - 1) // page_tokens[b])
    return most


@kernel(parallel=True)
def _scores(q, data, upper, lower, pitch, page_tokens, lengths, rank, scaling, out):  # type: ignore[no-untyped-def]
    heads, group, widest = q.shape[1], q.shape[2], out.shape[2]
    segments, blocks = q.shape[0] * heads, (widest + BLOCK_PAGES - 1) // BLOCK_PAGES
    logits = np.empty((segments, group, widest), np.float32)
    for task in numba.prange(segments * blocks):
        s, block = task // blocks, task % blocks
        b, g = s // heads, s % heads
        pages = (lengths[b, g] + page_tokens[b] - 1) // page_tokens[b]
        first, stop = block * BLOCK_PAGES, min(pages, (block + 1) * BLOCK_PAGES)
        if first < stop:
            rows, weights = chosen_rows(widened(q[b, g]), upper[b, g], lower[b, g], pitch[b, g], rank[b, g], scaling)
            add_rows(data, rows, weights, first, stop, logits[s])
    for s in numba.prange(segments):
        b, g = s // heads, s % heads
        spread(logits[s], page_tokens[b], lengths[b, g], out[b, g])


@kernel()
def chosen_rows(q, upper, lower, pitch, rank, scaling):  # type: ignore[no-untyped-def]
    """Where the rows of bounds of the `rank` largest dimensions start, and what each query head [R, D] weighs them by.

    Dimensions come in ascending order; the weights carry scaling and temperature.
    """
    group, head_dim = q.shape
    magnitude, total = np.zeros(head_dim, np.float32), np.zeros(head_dim, np.float32)
    for r in range(group):
        for d in range(head_dim):
            magnitude[d] += abs(q[r, d])
            total[d] += q[r, d]
    rows, dims = np.empty(rank, np.int64), np.empty(rank, np.int64)
    n = 0
    for d in range(head_dim):
        # Dimensions that come before this one, larger or equal and earlier; counted in floats, eight at a time.
        own, before = magnitude[d], np.float32(0)
        for e in range(d):
            before += np.float32(magnitude[e] == own)
        for e in range(head_dim):
            before += np.float32(magnitude[e] > own)
        if before < rank and n < rank:
            dims[n] = d
            rows[n] = (upper if total[d] >= 0 else lower) + d * pitch
            n += 1
    weights = np.empty((group, n), np.float32)
    for r in range(group):
        read, whole = np.float32(0), np.float32(0)
        for i in range(n):
            read += abs(q[r, dims[i]])
        for d in range(head_dim):
            whole += abs(q[r, d])
        # A head with nothing on these dimensions (or a zero query) has flat logits whatever the temperature.
        factor = scaling / np.sqrt(read / whole) if read > 0 else scaling
        for i in range(n):
            weights[r, i] = q[r, dims[i]] * factor
    return rows[:n], weights


@kernel()
def add_rows(data, rows, weights, first, stop, logits):  # type: ignore[no-untyped-def]
    """logits[r, p] = sum over i of weights[r, i] times element p of row i, for pages `first` to `stop`."""
    group, n = weights.shape
    width = stop - first
    logits[:, first:stop] = 0
    whole = n - n % 4
    for i in range(0, whole, 4):
        for j in range(i + 4, min(i + 8, n)):
            fetch_row(data, rows[j] + first, width)
        s0, s1, s2, s3 = rows[i] + first, rows[i + 1] + first, rows[i + 2] + first, rows[i + 3] + first
        for r in range(group):
            w = weights[r]
            add4(logits[r, first:stop], w[i], w[i + 1], w[i + 2], w[i + 3], data, s0, s1, s2, s3)
    for i in range(whole, n):
        for r in range(group):
            add1(logits[r, first:stop], weights[r, i], data, rows[i] + first)


@kernel()
def spread(logits, page_tokens, length, out):  # type: ignore[no-untyped-def]
    """Softmax of [R, P] logits over `length` tokens, mean over the heads; minus infinity behind the last page."""
    pages = (length + page_tokens - 1) // page_tokens
    out[pages:] = -np.inf
    if pages == 0:
        return
    group, last = logits.shape[0], pages - 1
    out[:pages] = 0
    for r in range(group):
        top = max(peak(logits[r, :pages]), np.float32(-3.4028234663852886e38))
        body = exponentials(logits[r, :last], top) * np.float32(page_tokens)
        tail = exponentials(logits[r, last:pages], top) * np.float32(length - last * page_tokens)
        total = max(body + tail, np.float32(1.1754943508222875e-38)) * np.float32(group)
        add1(out[:pages], np.float32(1) / total, logits[r], 0)
