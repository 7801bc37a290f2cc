"""Exact attention of one query per head over every token held, on a GPU: the kernel of sparse attention, unlisted."""

from __future__ import annotations

from rocketkv.ops.attend.triton import attend_split
from rocketkv.ops.kernel.triton import require
from rocketkv.types import Float, RaggedKV, Tensor


def dense_attend(q: Float[Tensor, "B G R D"], kv: RaggedKV, *, scaling: float) -> Float[Tensor, "B G R Dv"]:
    """`dense_attend.reference.dense_attend` on a GPU, without asking it for a length.

    Raises:
        BackendError: where a tensor is not on a CUDA device, or its dtype has no kernel.
    """
    require("dense_attend", q, kv.keys, kv.values)
    width = kv.keys.shape[0] // max(kv.lengths.numel(), 1)
    return attend_split(q, kv, None, kv.lengths, width=width, scaling=scaling)
