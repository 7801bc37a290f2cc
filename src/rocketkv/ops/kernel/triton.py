"""What every Triton kernel needs: the compiler, where it can run, tables as kernels read them, and block sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl

from rocketkv.ops.errors import BackendError
from rocketkv.types import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter, over CPU tensors: TRITON_INTERPRET=1 before triton is first imported."""
PROGRAMS = 256
"""Programs that one launch aims for where a sequence may be split: about two for each multiprocessor of a large GPU."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function with Triton; wrappers around it (shape checks in tests) are taken off first."""
    return triton.jit(inspect.unwrap(function))


@kernel
def nearest(x, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """float32 in `dtype`, rounded to nearest even. Spelt out for bfloat16, which the interpreter's cast truncates."""
    if dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return (tl.where(x == x, rounded, 0x7FC00000) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


def launch(compiled: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start `grid` programs on the device of the first argument, whichever device is current."""
    first = arguments[0]
    with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
        compiled[grid](*arguments, enable_fp_fusion=True, **constants)


def require(op: str, *tensors: Tensor) -> None:
    """Refuse what no kernel can read.

    Raises:
        BackendError: if a tensor is not on a CUDA device (and kernels are not interpreted), or its dtype has no kernel.
    """
    for tensor in tensors:
        if tensor.device.type != "cuda" and not INTERPRETED:
            raise BackendError(f'{op}/triton needs a CUDA device, got {tensor.device.type}; use backend="cpu"')
        if tensor.dtype not in DTYPES:
            name = str(tensor.dtype).removeprefix("torch.")
            raise BackendError(f'{op}/triton reads float32, bfloat16 and float16, got {name}; use backend="reference"')


def block(size: int, least: int = 16, most: int = 1 << 20) -> int:
    """The power of two that holds `size`, within limits. 16 is the least side of a matrix product on a GPU."""
    return min(max(triton.next_power_of_2(max(size, 1)), least), most)


def tile(width: int, stored: Tensor) -> int:
    """Rows of `width` numbers that a program takes at once: 16 KB of them, so that any GPU since Ampere has room."""
    return block(16384 // (block(width) * stored.element_size()), most=64)


def precisions(*tensors: Tensor) -> dict[str, str]:
    """How matrix products are formed so that float32 accumulation loses nothing that the reference keeps.

    16-bit numbers fit TF32 exactly, so that `READ` (stored x stored) may use it; `MIX` (float32 weights x stored)
    takes three TF32 products. float32 itself is multiplied as it is.
    """
    if any(tensor.dtype == torch.float32 for tensor in tensors):
        return {"READ": "ieee", "MIX": "ieee"}
    return {"READ": "tf32", "MIX": "tf32x3"}
