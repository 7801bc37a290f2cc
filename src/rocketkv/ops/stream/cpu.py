"""Long stored rows times float32 rows, at the rate of the memory, and what a kernel needs to be called cheaply.

A compiler's own version of this loop waits for memory. Here rows are read one after the other, several registers at a
time into sums of their own, and lines are asked for well before they are used.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from rocketkv.ops.kernel.cpu import kernel
from rocketkv.ops.lanes.cpu import FLOATS, WIDTH, fma, lanes, load, total, zeros

BLOCK = 4 * WIDTH
"""Numbers of a row that are taken together: four sums in flight, so that additions do not wait for one another."""
AHEAD_BYTES = 8192
"""How far ahead of its use a stored number is asked for."""
SECOND_CACHE = 2
"""Where it is put, in LLVM's terms; the nearest cache is too small for so much."""
LINE_BYTES = 64
HALVES = platform.machine() in ("arm64", "aarch64") or bool(get_host_cpu_features().get("f16c"))
"""Whether this processor converts float16; arithmetic in place of it is slower than the memory."""


@kernel()
def dot(stored, start, x, first, width):  # type: ignore[no-untyped-def]
    """stored[start : start + width] . x[first : first + width].

    `stored` and `x` are flat and contiguous: `stored` of int8, int16 (the bits of a bfloat16) or uint16 (those of a
    float16, where `HALVES`), `x` of float32.
    """
    a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
    whole = width - width % BLOCK
    for i in range(0, whole, BLOCK):
        fetch_block(stored, start + i)
        j, k = start + i, first + i
        a0 = fma(read(stored, j), load(x, k), a0)
        a1 = fma(read(stored, j + WIDTH), load(x, k + WIDTH), a1)
        a2 = fma(read(stored, j + 2 * WIDTH), load(x, k + 2 * WIDTH), a2)
        a3 = fma(read(stored, j + 3 * WIDTH), load(x, k + 3 * WIDTH), a3)
    return total(add(add(a0, a1), add(a2, a3))) + rest(stored, start, x, first, whole, width)


@kernel()
def dots4(stored, start, x, first, width):  # type: ignore[no-untyped-def]
    """The dot products of one stored row with four rows of x, which lie `width` apart, each with the bits of `dot`."""
    a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
    b0, b1, b2, b3 = zeros(), zeros(), zeros(), zeros()
    c0, c1, c2, c3 = zeros(), zeros(), zeros(), zeros()
    d0, d1, d2, d3 = zeros(), zeros(), zeros(), zeros()
    whole, second, third, fourth = width - width % BLOCK, first + width, first + 2 * width, first + 3 * width
    for i in range(0, whole, BLOCK):
        fetch_block(stored, start + i)
        s0, s1 = read(stored, start + i), read(stored, start + i + WIDTH)
        s2, s3 = read(stored, start + i + 2 * WIDTH), read(stored, start + i + 3 * WIDTH)
        a0, a1, a2, a3 = add_block(s0, s1, s2, s3, x, first + i, a0, a1, a2, a3)
        b0, b1, b2, b3 = add_block(s0, s1, s2, s3, x, second + i, b0, b1, b2, b3)
        c0, c1, c2, c3 = add_block(s0, s1, s2, s3, x, third + i, c0, c1, c2, c3)
        d0, d1, d2, d3 = add_block(s0, s1, s2, s3, x, fourth + i, d0, d1, d2, d3)
    return (
        total(add(add(a0, a1), add(a2, a3))) + rest(stored, start, x, first, whole, width),
        total(add(add(b0, b1), add(b2, b3))) + rest(stored, start, x, second, whole, width),
        total(add(add(c0, c1), add(c2, c3))) + rest(stored, start, x, third, whole, width),
        total(add(add(d0, d1), add(d2, d3))) + rest(stored, start, x, fourth, whole, width),
    )


@kernel()
def add_block(s0, s1, s2, s3, x, at, a0, a1, a2, a3):  # type: ignore[no-untyped-def]
    """One block of a row of x, added to its four sums."""
    return (
        fma(s0, load(x, at), a0),
        fma(s1, load(x, at + WIDTH), a1),
        fma(s2, load(x, at + 2 * WIDTH), a2),
        fma(s3, load(x, at + 3 * WIDTH), a3),
    )


@kernel(fast=False)
def rest(stored, start, x, first, whole, width):  # type: ignore[no-untyped-def]
    """What lies behind the last whole block, number by number."""
    value = np.float32(0)
    for i in range(whole, width):
        value += read_one(stored, start + i) * x[first + i]
    return value


@intrinsic
def fetch_block(typing_context: Any, stored: Any, start: Any) -> Any:
    """Ask for the block that will be due AHEAD_BYTES from the one at `start`; a hint, no more."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] + [cgutils.int32_t] * 3)
        ask = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        for line in range(0, BLOCK * stored.dtype.bitwidth // 8, LINE_BYTES):
            ahead = builder.gep(place, [cgutils.intp_t(AHEAD_BYTES + line)])
            builder.call(ask, [ahead, cgutils.int32_t(0), cgutils.int32_t(SECOND_CACHE), cgutils.int32_t(1)])
        return context.get_dummy_value()

    return types.void(stored, types.intp), generate


@intrinsic
def add(typing_context: Any, a: Any, b: Any) -> Any:
    """The sums of pairs."""
    return lanes(lanes, lanes), lambda context, builder, signature, arguments: builder.fadd(*arguments)


@intrinsic
def read(typing_context: Any, array: Any, index: Any) -> Any:
    """WIDTH stored numbers of a contiguous array from `index`, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored = ir.VectorType(ir.IntType(array.dtype.bitwidth), WIDTH)
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        value = builder.load(builder.bitcast(builder.gep(data, [arguments[1]]), stored.as_pointer()))
        value.align = array.dtype.bitwidth // 8
        return _widened(builder, array.dtype, value, FLOATS)

    return lanes(array, types.intp), generate


@intrinsic
def read_one(typing_context: Any, array: Any, index: Any) -> Any:
    """One stored number of a contiguous array, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        value = builder.load(builder.gep(data, [arguments[1]]))
        return _widened(builder, array.dtype, value, ir.FloatType())

    return types.float32(array, types.intp), generate


def _widened(builder: Any, kind: Any, value: Any, single: Any) -> Any:
    def shaped(element: Any) -> Any:
        return element if single == ir.FloatType() else ir.VectorType(element, WIDTH)

    if kind == types.int8:
        return builder.sitofp(value, single)
    if kind == types.uint16:
        return builder.fpext(builder.bitcast(value, shaped(ir.HalfType())), single)
    assert kind == types.int16
    words = shaped(ir.IntType(32))
    places = ir.Constant(words, 16 if single == ir.FloatType() else [16] * WIDTH)
    return builder.bitcast(builder.shl(builder.zext(value, words), places), single)


def narrow(x: Any, kind: Any) -> Any:
    """A float32 as stored in the array `kind`: the nearest bfloat16 for int16, the nearest float16 for uint16."""
    raise NotImplementedError("for kernels only")


@overload(narrow)
def _narrow(x, kind):  # type: ignore[no-untyped-def]
    if kind.dtype == types.int16:
        return lambda x, kind: _brain(x)
    if kind.dtype == types.uint16:
        return lambda x, kind: _half(x)
    return lambda x, kind: x


@kernel(fast=False)
def _brain(x):  # type: ignore[no-untyped-def]
    number = np.float32(x).view(np.uint32)
    tie = np.uint32(number >> np.uint32(16)) & np.uint32(1)
    rounded = np.uint32(number + np.uint32(0x7FFF) + tie) if x == x else np.uint32(0x7FC00000)
    return np.int16(rounded >> np.uint32(16))


@intrinsic
def _half(typing_context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """An address, as `Tensor.data_ptr` gives it, as the pointer that `numba.carray` wants."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate
