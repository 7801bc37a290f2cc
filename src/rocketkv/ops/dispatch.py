"""Which implementation of an op runs. Nothing falls back in silence: a backend that cannot run says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from rocketkv.ops.errors import BackendError
from rocketkv.types import PageBounds, RaggedKV, Tensor

BACKENDS = ("auto", "reference", "cpu", "triton")
LIBRARIES = {"cpu": "numba", "triton": "triton"}
"""What a backend's kernels are written with."""
FASTEST = {"cpu": "cpu", "cuda": "triton"}
"""Device type -> the backend that "auto" takes there, where its library is installed."""
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def backend_names(backend: str) -> None:
    """Raise BackendError unless `backend` is a known name."""
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}: choose from {', '.join(BACKENDS)}")


@cache
def op(folder: str, name: str, backend: str = "auto") -> Callable[..., Any]:
    """The function `name` of `rocketkv.ops.<folder>` for a backend.

    "auto" decides at each call, by the op's first argument: for float32, bfloat16 and float16 the CPU kernel on a CPU
    where Numba is installed and the GPU kernel on a CUDA device where Triton is, the reference for everything else.

    Raises:
        BackendError: naming the op, the backend and the way out.
    """
    backend_names(backend)
    if backend != "auto":
        return _load(folder, name, backend)

    def by_device(first: Any, *rest: Any, **named: Any) -> Any:
        tensor: Tensor = first
        if isinstance(first, PageBounds | RaggedKV):
            tensor = first.data if isinstance(first, PageBounds) else first.keys
        chosen = FASTEST.get(tensor.device.type, "reference")
        if tensor.dtype not in KERNEL_DTYPES or not _installed(folder, chosen):
            chosen = "reference"
        return _load(folder, name, chosen)(first, *rest, **named)

    return by_device


@cache
def _load(folder: str, name: str, backend: str) -> Callable[..., Any]:
    module = f"rocketkv.ops.{folder}.{backend}"
    if find_spec(module) is None:
        raise BackendError(f'{folder}/{backend} is not implemented; use backend="reference"')
    library = LIBRARIES.get(backend)
    if library is not None and find_spec(library) is None:
        raise BackendError(f'{folder}/{backend} needs {library}: pip install {library}, or use backend="reference"')
    return getattr(import_module(module), name)


@cache
def _installed(folder: str, backend: str) -> bool:
    """Whether the op has an implementation for this backend, and its library is there."""
    library = LIBRARIES.get(backend)
    there = find_spec(f"rocketkv.ops.{folder}.{backend}") is not None
    return there and (library is None or find_spec(library) is not None)
