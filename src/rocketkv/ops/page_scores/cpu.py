"""Hybrid sparse attention's estimate on a CPU: rows of bounds are streamed once, pages in blocks."""

from __future__ import annotations

import numba
import numpy as np
import torch

from rocketkv.ops.kernel.cpu import bits, kernel, set_threads, table
from rocketkv.ops.lanes.cpu import WIDTH, fma, load, splat, store, zeros
from rocketkv.ops.vector.cpu import add1, exponentials, padded, peak, prefetch, widen, widened
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
    scores = torch.empty(*q.shape[:2], most_pages(held, sizes), dtype=torch.float32, device="cpu")
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
    logits = np.empty((segments, padded(group), widest), np.float32)
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
        spread(logits[s], group, page_tokens[b], lengths[b, g], out[b, g])


@kernel()
def chosen_rows(q, upper, lower, pitch, rank, scaling):  # type: ignore[no-untyped-def]
    """Where the rows of bounds of the `rank` largest dimensions start, and what each query head [R, D] weighs them by.

    Dimensions come in ascending order; the weights carry scaling and temperature.
    """
    group, head_dim = q.shape
    magnitude, sums = np.zeros(head_dim, np.float32), np.zeros(head_dim, np.float32)
    for r in range(group):
        for d in range(head_dim):
            magnitude[d] += abs(q[r, d])
            sums[d] += q[r, d]
    order = magnitude.view(np.int32)  # numbers of no sign sort as their bits do
    least, equal = smallest_taken(order, rank)
    rows, dims = np.empty(rank, np.int64), np.empty(rank, np.int64)
    n = 0
    for d in range(head_dim):
        if order[d] > least or (order[d] == least and equal > 0):
            equal -= order[d] == least
            dims[n] = d
            rows[n] = (upper if sums[d] >= 0 else lower) + d * pitch
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


@kernel(fast=False)
def smallest_taken(order, wanted):  # type: ignore[no-untyped-def]
    """The smallest of the `wanted` largest of some int32 numbers >= 0, and how many of that very number are taken."""
    least = np.int32(0)
    for bit in range(30, -1, -1):
        higher, count = np.int32(least | np.int32(1 << bit)), np.int32(0)
        for d in range(order.shape[0]):
            count += np.int32(order[d] >= higher)
        if count >= wanted:
            least = higher
    above = 0
    for d in range(order.shape[0]):
        above += order[d] > least
    return least, wanted - above


@kernel()
def add_rows(data, rows, weights, first, stop, logits):  # type: ignore[no-untyped-def]
    """logits[r, p] = sum over i of weights[r, i] times element p of row i, for pages `first` to `stop`.

    Rows are streamed four at a time, for four query heads at once, while the next four are fetched.
    """
    heads, n = weights.shape
    logits[:, first:stop] = 0
    flat, pitch, four, whole = logits.reshape(-1), logits.shape[1], n - n % 4, stop - (stop - first) % WIDTH
    for i in range(0, four, 4):
        x0, x1, x2, x3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        y0, y1, y2, y3 = (
            rows[min(i + 4, n - 1)],
            rows[min(i + 5, n - 1)],
            rows[min(i + 6, n - 1)],
            rows[min(i + 7, n - 1)],
        )
        for r in range(0, heads, 4):
            a, b, c, d = weights[r], weights[r + 1], weights[r + 2], weights[r + 3]
            a0, a1, a2, a3 = splat(a[i]), splat(a[i + 1]), splat(a[i + 2]), splat(a[i + 3])
            b0, b1, b2, b3 = splat(b[i]), splat(b[i + 1]), splat(b[i + 2]), splat(b[i + 3])
            c0, c1, c2, c3 = splat(c[i]), splat(c[i + 1]), splat(c[i + 2]), splat(c[i + 3])
            d0, d1, d2, d3 = splat(d[i]), splat(d[i + 1]), splat(d[i + 2]), splat(d[i + 3])
            oa, ob, oc, od = r * pitch, (r + 1) * pitch, (r + 2) * pitch, (r + 3) * pitch
            for p in range(first, whole, WIDTH):
                if r == 0:
                    prefetch(data, y0 + p), prefetch(data, y1 + p), prefetch(data, y2 + p), prefetch(data, y3 + p)
                s, t, u, v = load(data, x0 + p), load(data, x1 + p), load(data, x2 + p), load(data, x3 + p)
                store(flat, oa + p, fma(a3, v, fma(a2, u, fma(a1, t, fma(a0, s, load(flat, oa + p))))))
                store(flat, ob + p, fma(b3, v, fma(b2, u, fma(b1, t, fma(b0, s, load(flat, ob + p))))))
                store(flat, oc + p, fma(c3, v, fma(c2, u, fma(c1, t, fma(c0, s, load(flat, oc + p))))))
                store(flat, od + p, fma(d3, v, fma(d2, u, fma(d1, t, fma(d0, s, load(flat, od + p))))))
    for i in range(four, n):
        for r in range(0, heads, 4):
            a, b, c, d = (
                splat(weights[r, i]),
                splat(weights[r + 1, i]),
                splat(weights[r + 2, i]),
                splat(weights[r + 3, i]),
            )
            oa, ob, oc, od = r * pitch, (r + 1) * pitch, (r + 2) * pitch, (r + 3) * pitch
            for p in range(first, whole, WIDTH):
                s = load(data, rows[i] + p)
                store(flat, oa + p, fma(a, s, load(flat, oa + p)))
                store(flat, ob + p, fma(b, s, load(flat, ob + p)))
                store(flat, oc + p, fma(c, s, load(flat, oc + p)))
                store(flat, od + p, fma(d, s, load(flat, od + p)))
    if whole < stop:
        _add_last(data, rows, weights, first, stop, logits)


@kernel()
def _add_last(data, rows, weights, first, stop, logits):  # type: ignore[no-untyped-def]
    """The same for pages behind the last full register: of the last WIDTH pages, or one by one where there are less."""
    flat, pitch, n = logits.reshape(-1), logits.shape[1], weights.shape[1]
    p = stop - WIDTH
    for r in range(0, weights.shape[0], 4):
        if p >= first:
            a, b, c, d = zeros(), zeros(), zeros(), zeros()
            for i in range(n):
                s = load(data, rows[i] + p)
                a, b = fma(splat(weights[r, i]), s, a), fma(splat(weights[r + 1, i]), s, b)
                c, d = fma(splat(weights[r + 2, i]), s, c), fma(splat(weights[r + 3, i]), s, d)
            store(flat, r * pitch + p, a), store(flat, (r + 1) * pitch + p, b)
            store(flat, (r + 2) * pitch + p, c), store(flat, (r + 3) * pitch + p, d)
        else:
            for k in range(r, r + 4):
                for t in range(first, stop):
                    for i in range(n):
                        logits[k, t] += weights[k, i] * widen(data[rows[i] + t])


@kernel()
def spread(logits, group, page_tokens, length, out):  # type: ignore[no-untyped-def]
    """Softmax of logits [R, P] over `length` tokens, mean over the first `group` heads; -inf behind the last page."""
    pages = (length + page_tokens - 1) // page_tokens
    out[pages:] = -np.inf
    if pages == 0:
        return
    last = pages - 1
    out[:pages] = 0
    for r in range(group):
        top = max(peak(logits[r, :pages]), np.float32(-3.4028234663852886e38))
        body = exponentials(logits[r, :last], top) * np.float32(page_tokens)
        tail = exponentials(logits[r, last:pages], top) * np.float32(length - last * page_tokens)
        total = max(body + tail, np.float32(1.1754943508222875e-38)) * np.float32(group)
        add1(out[:pages], np.float32(1) / total, logits[r], 0)
