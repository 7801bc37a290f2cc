"""What every Numba kernel needs: the compiler, its announcement, the thread count, and tensors as NumPy views."""

from __future__ import annotations

import hashlib
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from filelock import FileLock
from numba.core import event

from rocketkv.ops.errors import BackendError
from rocketkv.types import Tensor

UNKNOWN = torch.float64
BITS: dict[torch.dtype, torch.dtype | None] = {
    torch.float32: None,
    torch.bfloat16: torch.int16,
    torch.float16: torch.uint16,
}
"""What a kernel sees: float32 itself, the bits of bfloat16 as int16 and those of float16 as uint16 (`vector.widen`)."""
STRICT = {"contract"}
FAST = {"contract", "reassoc", "nsz"}
"""Sums may be reordered, so that loops use vector registers; infinities and NaN keep their meaning."""


def _digest() -> str:
    """A name for the source of all kernels: Numba's disk cache does not see a change in a function called."""
    files = sorted(Path(__file__).parent.parent.glob("*/cpu.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


DIGEST = _digest()


def kernel(fast: bool = True, parallel: bool = False, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function at its first call, and keep the machine code on disk where a folder can be written.

    inline: become part of each caller, so that sizes which it gives as constants are known to the compiler.
    """
    options: dict[str, Any] = {"fastmath": FAST if fast else STRICT, "parallel": parallel, "error_model": "numpy"}
    options["inline"] = "always" if inline else "never"

    def compiled(function: Callable[..., Any]) -> Any:
        plain = inspect.unwrap(function)
        plain.__qualname__ = f"{plain.__qualname__}_{DIGEST}"  # part of the name of the file in the cache
        try:
            dispatcher = numba.njit(cache=True, **options)(plain)
        except RuntimeError:  # no folder to keep it in
            return numba.njit(**options)(plain)
        _save_one_at_a_time(dispatcher._cache)
        return dispatcher

    return compiled


def _save_one_at_a_time(cache: Any) -> None:
    """Two processes that keep code for different dtypes of one kernel at once would give both the same file name."""
    save = cache.save_overload

    def locked(signature: Any, code: Any) -> None:
        folder = Path(cache.cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "rocketkv.lock"):
            save(signature, code)

    cache.save_overload = locked


class _Announcement(event.Listener):
    """One line on stderr at the first real compilation of this process, none when machine code comes from the disk."""

    def on_start(self, event: Any) -> None:
        if not event.data["dispatcher"].py_func.__module__.startswith("rocketkv.ops"):
            return
        if not announced:
            announced.append(True)
            print("rocketkv: compiling CPU kernels (once; kept on disk)", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        pass


announced: list[bool] = []
_listening: list[_Announcement] = []
_agreed = threading.local()
"""`threads`: how many this thread has told Numba to use; Numba keeps the number for each thread apart."""


def set_threads() -> int:
    """Let kernels use as many threads as PyTorch does, and return how many."""
    threads = torch.get_num_threads()
    if getattr(_agreed, "threads", 0) == threads:
        return threads
    if not _listening:
        _listening.append(_Announcement())
        event.register("numba:compile", _listening[0])
        numba.set_num_threads(1)  # starts Numba's pool, which sets OpenMP's thread count: that is PyTorch's too
        torch.set_num_threads(threads)
    if threads <= numba.config.NUMBA_NUM_THREADS:
        _agreed.threads = threads
    threads = min(threads, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    return threads


def bits(op: str, tensor: Tensor) -> np.ndarray:
    """A float tensor as a kernel reads it, without a copy where it is contiguous.

    Raises:
        BackendError: if the tensor is not on the CPU, or its dtype has no kernel.
    """
    view = BITS.get(tensor.dtype, UNKNOWN)
    if view is UNKNOWN or not tensor.is_cpu:
        raise _refusal(op, tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor.numpy() if view is None else tensor.view(view).numpy()


def _refusal(op: str, tensor: Tensor) -> BackendError:
    if tensor.is_cpu:
        needs, found = "reads float32, bfloat16 and float16", str(tensor.dtype).removeprefix("torch.")
    else:
        needs, found = "needs a CPU tensor", tensor.device.type
    return BackendError(f'{op}/cpu {needs}, got {found}; use backend="reference"')


def alike(op: str, new: Tensor, stored: Tensor) -> None:
    """Raise BackendError unless new numbers are of the dtype that they are stored in: kernels copy bits."""
    if new.dtype != stored.dtype:
        found, held = str(new.dtype).removeprefix("torch."), str(stored.dtype).removeprefix("torch.")
        raise BackendError(
            f"{op}/cpu got a token of {found} for a cache of {held}: run prompt and decode steps in one dtype "
            '(autocast in both or in neither), or use backend="reference"'
        )


def table(tensor: Tensor) -> np.ndarray:
    """An index table as int64, without a copy where it is one already."""
    if tensor.dtype != torch.int64:
        tensor = tensor.long()
    return tensor.numpy() if tensor.is_contiguous() else tensor.contiguous().numpy()
