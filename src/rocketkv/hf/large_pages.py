"""Memory for weights in the system's large pages, which a processor finds with fewer look-ups and so reads faster."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import suppress

import torch

PAGE_BYTES = 2 << 20
LINE_BYTES = 64


class LargePages:
    """One stretch of memory for tensors that stay, as large as a list of (numbers, dtype) needs.

    Where the system has no large pages to ask for, tensors are PyTorch's own.
    """

    def __init__(self, sizes: Iterable[tuple[int, torch.dtype]]) -> None:
        self._memory: mmap.mmap | None = None
        self._at = 0
        if hasattr(mmap, "MADV_HUGEPAGE"):
            total = sum(_whole_lines(numbers * dtype.itemsize) for numbers, dtype in sizes)
            # Private, because shared memory follows another setting. A page more, to begin at a page of the large kind.
            self._memory = mmap.mmap(-1, total + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a kernel without them
                self._memory.madvise(mmap.MADV_HUGEPAGE)
            self._at = -torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr() % PAGE_BYTES

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same numbers in this memory."""
        if self._memory is None:
            return tensor.detach().clone()
        held = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=self._at)
        self._at += _whole_lines(tensor.numel() * tensor.dtype.itemsize)
        return held.view(tensor.shape).copy_(tensor.detach())


def _whole_lines(size_bytes: int) -> int:
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES
