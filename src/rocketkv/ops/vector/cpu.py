"""Inner loops that kernels share: numbers widened in registers, dot products, weighted sums, exponentials.

Every loop runs over fixed blocks, so that a segment's result depends on that segment alone: not on the batch, nor on
the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from rocketkv.ops.kernel.cpu import kernel
from rocketkv.ops.lanes.cpu import WIDTH, fma, larger, largest, load, splat, store, total, zeros

AHEAD = 8
"""Rows fetched ahead of use: enough to hide a cache miss, few enough to stay in the nearest cache."""
TILE_TOKENS = 32
"""Rows of values that are summed together: they stay in the nearest cache while each part of them is gone over."""


def widen(x: Any) -> Any:
    """A stored number as float32: float32 itself, int16 the bits of a bfloat16, uint16 those of a float16."""
    raise NotImplementedError("for kernels only")


@overload(widen)
def _widen(x):  # type: ignore[no-untyped-def]
    if x == types.int16:
        return lambda x: np.uint32(np.uint32(np.uint16(x)) << np.uint32(16)).view(np.float32)
    if x == types.uint16:
        return lambda x: _half(x)
    return lambda x: x


@kernel(fast=False)
def _half(x):  # type: ignore[no-untyped-def]
    # Exponents are moved by a multiplication, which is exact and gets subnormal numbers right.
    magnitude = np.uint32(x) & np.uint32(0x7FFF)
    scaled = np.uint32(magnitude << np.uint32(13)).view(np.float32) * np.float32(2.0**112)
    special = np.uint32((magnitude << np.uint32(13)) | np.uint32(0x7F800000))
    finite = magnitude < np.uint32(0x7C00)
    value = np.uint32(np.float32(scaled).view(np.uint32) if finite else special)
    return np.uint32(value | ((np.uint32(x) & np.uint32(0x8000)) << np.uint32(16))).view(np.float32)


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of element `index` of a contiguous array; a hint, whatever the index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] + [cgutils.int32_t] * 3)
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        builder.call(fetch, [place, cgutils.int32_t(0), cgutils.int32_t(3), cgutils.int32_t(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@kernel()
def fetch_row(array, start, width):  # type: ignore[no-untyped-def]
    """Prefetch `width` elements from `start`, one cache line at a time."""
    step = 64 // array.itemsize
    for i in range(0, width, step):
        prefetch(array, start + i)


@kernel(fast=False)
def exp32(x):  # type: ignore[no-untyped-def]
    """e to the x for x <= 0 in float32, to about one unit in the last place; 0 below -87."""
    y = max(x, np.float32(-87.0))
    n = np.floor(y * np.float32(1.4426950408889634) + np.float32(0.5))
    f = y - n * np.float32(0.693359375)
    f = f - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * f + np.float32(1.3981999507e-3)
    p = p * f + np.float32(8.3334519073e-3)
    p = p * f + np.float32(4.1665795894e-2)
    p = p * f + np.float32(1.6666665459e-1)
    p = p * f + np.float32(0.5)
    p = p * (f * f) + f + np.float32(1.0)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * power if x >= np.float32(-87.0) else np.float32(0.0)


@kernel()
def dots4(q, first, head_dim, x, start, slots, out, later, later_width):  # type: ignore[no-untyped-def]
    """out[first + r, i] = q[first + r] . row slots[i] of a segment of x, for four query heads and two tokens at a time.

    q holds rows [R, D] one after the other, x rows of D stored numbers; the segment begins at row `start`. The same
    rows of `later` are fetched meanwhile, as they are wanted next. Loops over the usual head sizes are unrolled.
    """
    if head_dim == 128 and later_width == 128:
        _dots4(q, first, 128, x, start, slots, out, later, 128)
    elif head_dim == 64 and later_width == 64:
        _dots4(q, first, 64, x, start, slots, out, later, 64)
    else:
        _dots4(q, first, head_dim, x, start, slots, out, later, later_width)


@kernel(inline=True)
def _dots4(q, first, head_dim, x, start, slots, out, later, later_width):  # type: ignore[no-untyped-def]
    n, whole = slots.shape[0], head_dim - head_dim % WIDTH
    q0, q1, q2, q3 = first * head_dim, (first + 1) * head_dim, (first + 2) * head_dim, (first + 3) * head_dim
    for i in range(0, n, 2):
        j = min(i + 1, n - 1)
        left, right = (start + slots[i]) * head_dim, (start + slots[j]) * head_dim
        if first == 0:
            for k in range(i + AHEAD, min(i + AHEAD + 2, n)):
                fetch_row(x, (start + slots[k]) * head_dim, head_dim)
            fetch_row(later, (start + slots[i]) * later_width, later_width)
            fetch_row(later, (start + slots[j]) * later_width, later_width)
        a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
        b0, b1, b2, b3 = zeros(), zeros(), zeros(), zeros()
        for d in range(0, whole, WIDTH):
            a, b = load(x, left + d), load(x, right + d)
            h0, h1, h2, h3 = load(q, q0 + d), load(q, q1 + d), load(q, q2 + d), load(q, q3 + d)
            a0, a1, a2, a3 = fma(h0, a, a0), fma(h1, a, a1), fma(h2, a, a2), fma(h3, a, a3)
            b0, b1, b2, b3 = fma(h0, b, b0), fma(h1, b, b1), fma(h2, b, b2), fma(h3, b, b3)
        out[first, i], out[first + 1, i], out[first + 2, i], out[first + 3, i] = (
            total(a0), total(a1), total(a2), total(a3))  # fmt: skip
        out[first, j], out[first + 1, j], out[first + 2, j], out[first + 3, j] = (
            total(b0), total(b1), total(b2), total(b3))  # fmt: skip
        for d in range(whole, head_dim):
            a, b = widen(x[left + d]), widen(x[right + d])
            for r in range(4):
                out[first + r, i] += q[(first + r) * head_dim + d] * a
                if j > i:
                    out[first + r, j] += q[(first + r) * head_dim + d] * b


@kernel()
def add4(weights, first, x, start, width, slots, out):  # type: ignore[no-untyped-def]
    """out[first + r] += sum over i of weights[first + r, i] times row slots[i] of a segment of x, for four query heads.

    x holds rows of `width` stored numbers, the segment begins at row `start`; a tile of tokens is gone over once for
    every two registers of its rows. `dots4` has asked for these rows.
    """
    n, pairs, whole = slots.shape[0], width - width % (2 * WIDTH), width - width % WIDTH
    flat, pitch = out.reshape(-1), out.shape[1]
    o0, o1, o2, o3 = first * pitch, (first + 1) * pitch, (first + 2) * pitch, (first + 3) * pitch
    w0, w1, w2, w3 = weights[first], weights[first + 1], weights[first + 2], weights[first + 3]
    for tile in range(0, n, TILE_TOKENS):
        stop = min(n, tile + TILE_TOKENS)
        for d in range(0, pairs, 2 * WIDTH):
            e = d + WIDTH
            a0, a1, a2, a3 = load(flat, o0 + d), load(flat, o1 + d), load(flat, o2 + d), load(flat, o3 + d)
            b0, b1, b2, b3 = load(flat, o0 + e), load(flat, o1 + e), load(flat, o2 + e), load(flat, o3 + e)
            for i in range(tile, stop):
                row = (start + slots[i]) * width
                a, b = load(x, row + d), load(x, row + e)
                h0, h1, h2, h3 = splat(w0[i]), splat(w1[i]), splat(w2[i]), splat(w3[i])
                a0, a1, a2, a3 = fma(h0, a, a0), fma(h1, a, a1), fma(h2, a, a2), fma(h3, a, a3)
                b0, b1, b2, b3 = fma(h0, b, b0), fma(h1, b, b1), fma(h2, b, b2), fma(h3, b, b3)
            store(flat, o0 + d, a0), store(flat, o1 + d, a1), store(flat, o2 + d, a2), store(flat, o3 + d, a3)
            store(flat, o0 + e, b0), store(flat, o1 + e, b1), store(flat, o2 + e, b2), store(flat, o3 + e, b3)
        for d in range(pairs, whole, WIDTH):
            a0, a1, a2, a3 = load(flat, o0 + d), load(flat, o1 + d), load(flat, o2 + d), load(flat, o3 + d)
            for i in range(tile, stop):
                a = load(x, (start + slots[i]) * width + d)
                a0, a1, a2, a3 = (
                    fma(splat(w0[i]), a, a0),
                    fma(splat(w1[i]), a, a1),
                    fma(splat(w2[i]), a, a2),
                    fma(splat(w3[i]), a, a3),
                )
            store(flat, o0 + d, a0), store(flat, o1 + d, a1), store(flat, o2 + d, a2), store(flat, o3 + d, a3)
        for d in range(whole, width):
            for i in range(tile, stop):
                a = widen(x[(start + slots[i]) * width + d])
                for r in range(4):
                    out[first + r, d] += weights[first + r, i] * a


@kernel()
def add1(out, w, x, start):  # type: ignore[no-untyped-def]
    """out += w x[start:], as many elements as `out` has."""
    n = out.shape[0]
    row = x[start : start + n]
    for i in range(n):
        out[i] += w * widen(row[i])


@kernel()
def peak(x):  # type: ignore[no-untyped-def]
    """The largest element of a contiguous array; minus infinity of none. NaN are passed over."""
    n = x.shape[0]
    best, whole = splat(np.float32(-np.inf)), n - n % WIDTH
    for i in range(0, whole, WIDTH):
        best = larger(load(x, i), best)
    top = largest(best)
    for i in range(whole, n):
        top = max(top, x[i])
    return top


@kernel()
def exponentials(x, top):  # type: ignore[no-untyped-def]
    """x = exp(x - top) in place; returns the sum."""
    total = np.float32(0)
    for i in range(x.shape[0]):
        x[i] = exp32(x[i] - top)
        total += x[i]
    return total


@kernel()
def padded(rows):  # type: ignore[no-untyped-def]
    """The next multiple of four: query heads are worked on four at a time."""
    return (rows + 3) // 4 * 4


@kernel()
def widened(rows):  # type: ignore[no-untyped-def]
    """Stored query rows [R, D] as float32, with rows of zeros behind them to a multiple of four."""
    out = np.zeros((padded(rows.shape[0]), rows.shape[1]), np.float32)
    for r in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            out[r, i] = widen(rows[r, i])
    return out
