"""The linear layer on a CPU: few rows read the weights once, as they are stored; many rows are PyTorch's product."""

from __future__ import annotations

import math

import numba
import numpy as np
import torch

from rocketkv.ops.kernel.cpu import BITS, bits, kernel, set_threads
from rocketkv.ops.stream.cpu import HALVES, dot, dots4, narrow, pointer
from rocketkv.ops.vector.cpu import widen
from rocketkv.types import Float, Int, Tensor

FEW_ROWS = {torch.int8: 16, torch.bfloat16: 4, torch.float16: 4}
"""Up to so many rows our kernel is the faster one, by how weights are stored. PyTorch reads float32 at memory speed."""
SERIAL_WEIGHTS = 1 << 16
"""Below so many weights a second thread costs more than it saves."""
BLOCK_WEIGHTS = 1 << 20
"""Integers made floats at a time for many rows: 4 MB, which stay in the processor's cache."""
KINDS = {
    torch.int8: np.empty(0, np.int8),
    torch.float32: np.empty(0, np.float32),
    torch.bfloat16: np.empty(0, np.int16),
} | ({torch.float16: np.empty(0, np.uint16)} if HALVES else {})
"""What tells a kernel how numbers are stored, in the dtypes of `ops.kernel.cpu.BITS`."""


def linear(
    x: Float[Tensor, "*n I"],
    weights: Float[Tensor, "O I"] | Int[Tensor, "O I"],
    scales: Float[Tensor, "O"] | None = None,
    bias: Float[Tensor, "O"] | None = None,
) -> Float[Tensor, "*n O"]:
    """The reference's output; many rows of bfloat16 or float16 may round once more, before scale or bias.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    if x.dtype not in BITS or not x.is_cpu:
        bits("linear", x)  # which raises
    if x.numel() <= FEW_ROWS.get(weights.dtype, -1) * x.shape[-1] and x.dtype in KINDS and weights.dtype in KINDS:
        return _few(x, weights, scales, bias)
    if scales is None:
        return torch.nn.functional.linear(x.detach(), weights.detach().to(x.dtype), bias)
    return _many(x.detach().reshape(-1, x.shape[-1]), weights.detach(), scales, bias).view(*x.shape[:-1], -1)


def _many(
    x: Float[Tensor, "n I"], weights: Int[Tensor, "O I"], scales: Float[Tensor, "O"], bias: Float[Tensor, "O"] | None
) -> Float[Tensor, "n O"]:
    out = x.new_empty(x.shape[0], weights.shape[0])
    step = max(1, BLOCK_WEIGHTS // weights.shape[1])
    for first in range(0, weights.shape[0], step):
        block = slice(first, first + step)
        product = (x @ weights[block].to(x.dtype).T).float() * scales[block]  # 8-bit integers are exact in every dtype
        out[:, block] = product if bias is None else product.add_(bias.detach()[block])
    return out


def _few(
    x: Float[Tensor, "*n I"],
    weights: Float[Tensor, "O I"] | Int[Tensor, "O I"],
    scales: Float[Tensor, "O"] | None,
    bias: Float[Tensor, "O"] | None,
) -> Float[Tensor, "*n O"]:
    # While weights stream through the caches, each PyTorch call here costs about ten microseconds: as few as can be.
    outputs, inputs = weights.shape
    *shape, _ = x.shape
    x, weights = _flat(x, x.dtype), _flat(weights, weights.dtype)
    out = torch.empty(*shape, outputs, dtype=x.dtype, device="cpu")
    scales = None if scales is None else _flat(scales, torch.float32)
    bias = None if bias is None else _flat(bias, x.dtype)
    # Addresses, because tensors made NumPy arrays cost as much as a small product; 0 for what is not there.
    scaled, shifted = 0 if scales is None else scales.data_ptr(), 0 if bias is None else bias.data_ptr()
    threads = 1 if weights.numel() < SERIAL_WEIGHTS else set_threads()
    (_serial if threads == 1 else _parallel)(
        KINDS[x.dtype], KINDS[weights.dtype], x.data_ptr(), weights.data_ptr(), scaled, shifted, out.data_ptr(),
        math.prod(shape), outputs, inputs, threads,
    )  # fmt: skip
    return out


def _flat(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor whose address says all."""
    if tensor.dtype == dtype and tensor.is_contiguous():
        return tensor
    return tensor.detach().to(dtype).contiguous()


@kernel()
def _floats(x):  # type: ignore[no-untyped-def]
    out = np.empty(x.shape, np.float32)
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[r, i] = widen(x[r, i])
    return out.reshape(-1)


@kernel()
def _outputs(first, stop, x, weights, scales, bias, out):  # type: ignore[no-untyped-def]
    rows, inputs = x.shape
    flat = _floats(x)
    for o in range(first, stop):
        scale = scales[o] if scales.shape[0] > 0 else np.float32(1)
        more = widen(bias[o]) if bias.shape[0] > 0 else np.float32(0)
        r = 0
        while r + 4 <= rows:
            a, b, c, d = dots4(weights, o * inputs, flat, r * inputs, inputs)
            out[r, o], out[r + 1, o] = narrow(a * scale + more, out), narrow(b * scale + more, out)
            out[r + 2, o], out[r + 3, o] = narrow(c * scale + more, out), narrow(d * scale + more, out)
            r += 4
        while r < rows:
            a = dot(weights, o * inputs, flat, r * inputs, inputs)
            out[r, o] = narrow(a * scale + more, out)
            r += 1


@kernel()
def _arrays(float_kind, kind, x, weights, scales, bias, out, rows, outputs, inputs):  # type: ignore[no-untyped-def]
    return (
        numba.carray(pointer(x), (rows, inputs), float_kind.dtype),
        numba.carray(pointer(weights), outputs * inputs, kind.dtype),
        numba.carray(pointer(scales), outputs if scales != 0 else 0, np.float32),
        numba.carray(pointer(bias), outputs if bias != 0 else 0, float_kind.dtype),
        numba.carray(pointer(out), (rows, outputs), float_kind.dtype),
    )


@kernel()
def _serial(  # type: ignore[no-untyped-def]
    float_kind, kind, x, weights, scales, bias, out, rows, outputs, inputs, threads
):
    x_, weights_, scales_, bias_, out_ = _arrays(float_kind, kind, x, weights, scales, bias, out, rows, outputs, inputs)
    _outputs(0, outputs, x_, weights_, scales_, bias_, out_)


@kernel(parallel=True)
def _parallel(  # type: ignore[no-untyped-def]
    float_kind, kind, x, weights, scales, bias, out, rows, outputs, inputs, threads
):
    x_, weights_, scales_, bias_, out_ = _arrays(float_kind, kind, x, weights, scales, bias, out, rows, outputs, inputs)
    share = (outputs + threads - 1) // threads
    for thread in numba.prange(threads):  # one stretch of memory a thread
        _outputs(thread * share, min((thread + 1) * share, outputs), x_, weights_, scales_, bias_, out_)
