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

AHEAD = 4
"""Rows fetched ahead of use: enough to hide a cache miss, few enough to stay in the nearest cache."""


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
def dots(q, x, start, width, out, at):  # type: ignore[no-untyped-def]
    """out[r, at] = q[r] . x[start : start + width] for every row r of q."""
    heads = q.shape[0]
    # A slice, because an index that might be negative keeps a loop from vector registers.
    row = x[start : start + width]
    r = 0
    while r + 4 <= heads:
        q0, q1, q2, q3 = q[r], q[r + 1], q[r + 2], q[r + 3]
        a = b = c = d = np.float32(0)
        for i in range(width):
            v = widen(row[i])
            a += q0[i] * v
            b += q1[i] * v
            c += q2[i] * v
            d += q3[i] * v
        out[r, at], out[r + 1, at], out[r + 2, at], out[r + 3, at] = a, b, c, d
        r += 4
    while r < heads:
        q0 = q[r]
        a = np.float32(0)
        for i in range(width):
            a += q0[i] * widen(row[i])
        out[r, at] = a
        r += 1


@kernel()
def add4(out, w0, w1, w2, w3, x, s0, s1, s2, s3):  # type: ignore[no-untyped-def]
    """out += w0 x[s0:] + w1 x[s1:] + w2 x[s2:] + w3 x[s3:], as many elements as `out` has."""
    n = out.shape[0]
    x0, x1, x2, x3 = x[s0 : s0 + n], x[s1 : s1 + n], x[s2 : s2 + n], x[s3 : s3 + n]
    for i in range(n):
        left = w0 * widen(x0[i]) + w1 * widen(x1[i])
        out[i] += left + (w2 * widen(x2[i]) + w3 * widen(x3[i]))


@kernel()
def add1(out, w, x, start):  # type: ignore[no-untyped-def]
    """out += w x[start:], as many elements as `out` has."""
    n = out.shape[0]
    row = x[start : start + n]
    for i in range(n):
        out[i] += w * widen(row[i])


@kernel()
def peak(x):  # type: ignore[no-untyped-def]
    """The largest element; minus infinity of none."""
    best = np.float32(-np.inf)
    for i in range(x.shape[0]):
        best = max(best, x[i])
    return best


@kernel()
def exponentials(x, top):  # type: ignore[no-untyped-def]
    """x = exp(x - top) in place; returns the sum."""
    total = np.float32(0)
    for i in range(x.shape[0]):
        x[i] = exp32(x[i] - top)
        total += x[i]
    return total


@kernel()
def widened(rows):  # type: ignore[no-untyped-def]
    """Stored rows [R, D] as float32."""
    out = np.empty(rows.shape, np.float32)
    for r in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            out[r, i] = widen(rows[r, i])
    return out
