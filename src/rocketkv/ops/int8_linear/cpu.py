"""The int8 linear layer on a CPU: few rows read the integers as they are, many rows go by blocks of floats."""

from __future__ import annotations

import numba
import numpy as np
import torch

from rocketkv.ops.kernel.cpu import bits, kernel, set_threads
from rocketkv.types import Float, Int, Tensor

FEW_ROWS = 16
"""Up to so many rows the product waits for memory, and integers are a quarter of the floats."""
BLOCK_OUTPUTS = 64
"""Outputs that one thread takes at a time."""
SERIAL_WEIGHTS = 1 << 17
"""Below so many weights a second thread costs more than it saves."""
BLOCK_WEIGHTS = 1 << 20
"""Weights made floats at a time for many rows: 4 MB, which stay in the processor's cache."""


def int8_linear(
    x: Float[Tensor, "*n I"],
    weights: Int[Tensor, "O I"],
    scales: Float[Tensor, "O"],
    bias: Float[Tensor, "O"] | None = None,
) -> Float[Tensor, "*n O"]:
    """The reference's output; many rows of bfloat16 or float16 round once more, before the scale.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    bits("int8_linear", x.detach()[:0])
    rows = x.detach().reshape(-1, x.shape[-1])
    if rows.shape[0] <= FEW_ROWS:
        out = _with_bias(_few(rows, weights.detach(), scales), bias).to(x.dtype)
    else:
        out = x.new_empty(rows.shape[0], weights.shape[0])
        step = max(1, BLOCK_WEIGHTS // weights.shape[1])
        for first in range(0, weights.shape[0], step):
            block = slice(first, first + step)
            product = rows @ weights.detach()[block].to(x.dtype).T  # 8-bit integers are exact in every dtype
            out[:, block] = _with_bias(product.float() * scales[block], None if bias is None else bias[block])
    return out.view(*x.shape[:-1], -1)


def _with_bias(product: Float[Tensor, "n O"], bias: Float[Tensor, "O"] | None) -> Float[Tensor, "n O"]:
    return product if bias is None else product.add_(bias.detach())


def _few(x: Float[Tensor, "n I"], weights: Int[Tensor, "O I"], scales: Float[Tensor, "O"]) -> Float[Tensor, "n O"]:
    out = torch.empty(x.shape[0], weights.shape[0])
    arguments = (x.float().contiguous().numpy(), weights.detach().numpy(), scales.float().numpy(), out.numpy())
    if weights.numel() < SERIAL_WEIGHTS or set_threads() == 1:
        _serial(*arguments)
    else:
        _parallel(*arguments)
    return out


@kernel()
def _outputs(first, stop, x, weights, scales, out):  # type: ignore[no-untyped-def]
    for r in range(x.shape[0]):
        o = first
        while o + 4 <= stop:
            a = b = c = d = np.float32(0)
            for i in range(weights.shape[1]):
                v = x[r, i]
                a += np.float32(weights[o, i]) * v
                b += np.float32(weights[o + 1, i]) * v
                c += np.float32(weights[o + 2, i]) * v
                d += np.float32(weights[o + 3, i]) * v
            out[r, o], out[r, o + 1] = a * scales[o], b * scales[o + 1]
            out[r, o + 2], out[r, o + 3] = c * scales[o + 2], d * scales[o + 3]
            o += 4
        while o < stop:
            a = np.float32(0)
            for i in range(weights.shape[1]):
                a += np.float32(weights[o, i]) * x[r, i]
            out[r, o] = a * scales[o]
            o += 1


@kernel()
def _serial(x, weights, scales, out):  # type: ignore[no-untyped-def]
    for first in range(0, weights.shape[0], BLOCK_OUTPUTS):
        _outputs(first, min(first + BLOCK_OUTPUTS, weights.shape[0]), x, weights, scales, out)


@kernel(parallel=True)
def _parallel(x, weights, scales, out):  # type: ignore[no-untyped-def]
    blocks = (weights.shape[0] + BLOCK_OUTPUTS - 1) // BLOCK_OUTPUTS
    for block in numba.prange(blocks):
        first = block * BLOCK_OUTPUTS
        _outputs(first, min(first + BLOCK_OUTPUTS, weights.shape[0]), x, weights, scales, out)
