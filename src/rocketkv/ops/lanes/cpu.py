"""Several float32 numbers side by side in one register, for the inner loops that compilers do not find by themselves.

A kernel uses them as local variables: `a = fma(load(x, i), load(y, i), a)` over steps of WIDTH, then `total(a)`. Loads
widen bfloat16 and float16 (by their bits, as in `vector.widen`). Where a processor's registers are narrower, the
compiler takes several of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.extending import register_model
from numba.extending import intrinsic

WIDTH = 16 if binding.get_host_cpu_features().get("avx512f") else 8
"""Numbers side by side: as many as the processor's registers hold."""
REORDER = ("reassoc", "contract", "nsz")


class Lanes(types.Type):
    """WIDTH float32 numbers, to Numba."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{WIDTH}")


lanes = Lanes()
FLOATS, WORDS = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(ir.IntType(32), WIDTH)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any, vector: Any) -> Any:
    """Pointer to the vector that begins at element `index` of a contiguous array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def _words(value: int) -> ir.Constant:
    return ir.Constant(WORDS, [value] * WIDTH)


def _half(builder: Any, stored: Any) -> Any:
    """Bits of float16 as float32: the exponent is moved by a multiplication, which gets subnormal numbers right."""
    magnitude = builder.and_(stored, _words(0x7FFF))
    moved = builder.shl(magnitude, _words(13))
    scaled = builder.fmul(builder.bitcast(moved, FLOATS), ir.Constant(FLOATS, [2.0**112] * WIDTH))
    special = builder.or_(moved, _words(0x7F800000))
    finite = builder.icmp_unsigned("<", magnitude, _words(0x7C00))
    sign = builder.shl(builder.and_(stored, _words(0x8000)), _words(16))
    value = builder.or_(builder.select(finite, builder.bitcast(scaled, WORDS), special), sign)
    return builder.bitcast(value, FLOATS)


@intrinsic
def load(typing_context: Any, array: Any, index: Any) -> Any:
    """WIDTH elements of a contiguous array from `index`, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        stored = FLOATS if kind.dtype == types.float32 else ir.VectorType(ir.IntType(16), WIDTH)
        value = builder.load(_place(context, builder, kind, arguments[0], arguments[1], stored))
        value.align = kind.dtype.bitwidth // 8
        if kind.dtype == types.float32:
            return value
        wide = builder.zext(value, WORDS)
        if kind.dtype == types.int16:
            return builder.bitcast(builder.shl(wide, _words(16)), FLOATS)
        return _half(builder, wide)

    return lanes(array, types.intp), generate


@intrinsic
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write WIDTH numbers into a contiguous float32 array from `index`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], arguments[0], arguments[1], FLOATS)
        builder.store(arguments[2], place, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@intrinsic
def zeros(typing_context: Any) -> Any:
    """WIDTH zeros."""
    return lanes(), lambda context, builder, signature, arguments: ir.Constant(FLOATS, [0.0] * WIDTH)


@intrinsic
def splat(typing_context: Any, value: Any) -> Any:
    """The same number WIDTH times."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), arguments[0], cgutils.int32_t(0))
        return builder.shuffle_vector(first, ir.Constant(FLOATS, ir.Undefined), _words(0))

    return lanes(types.float32), generate


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, in one operation where the processor has it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, c = arguments
        return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    return lanes(lanes, lanes, lanes), generate


@intrinsic
def total(typing_context: Any, value: Any) -> Any:
    """The sum of the WIDTH numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), FLOATS])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{WIDTH}f32")
        return builder.call(add, [ir.Constant(ir.FloatType(), -0.0), arguments[0]], fastmath=REORDER)

    return types.float32(lanes), generate


@intrinsic
def larger(typing_context: Any, a: Any, b: Any) -> Any:
    """The larger of each pair; b where a is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b = arguments
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    return lanes(lanes, lanes), generate


@intrinsic
def largest(typing_context: Any, value: Any) -> Any:
    """The largest of the WIDTH numbers, of which none is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [FLOATS])
        pick = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fmax.v{WIDTH}f32")
        return builder.call(pick, arguments, fastmath=("nnan",))

    return types.float32(lanes), generate
