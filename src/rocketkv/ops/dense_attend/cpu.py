"""Dense decode attention on a CPU, split over the sequence: one head can use every core."""

from __future__ import annotations

import numba
import numpy as np
import torch

from rocketkv.ops.attend.cpu import BLOCK_TOKENS, attend_block, merge
from rocketkv.ops.kernel.cpu import bits, kernel, set_threads, table
from rocketkv.ops.vector.cpu import padded, widened
from rocketkv.types import Float, RaggedKV, Tensor


def dense_attend(q: Float[Tensor, "B G R D"], kv: RaggedKV, *, scaling: float) -> Float[Tensor, "B G R Dv"]:
    """The reference's output, summed in float32.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    out = torch.empty(*q.shape[:3], kv.values.shape[1], dtype=torch.float32, device="cpu")
    lengths = table(kv.lengths)
    set_threads()
    _attend(bits("dense_attend", q), bits("dense_attend", kv.keys), bits("dense_attend", kv.values), table(kv.starts),
            lengths, int(lengths.max()), np.float32(scaling), out.numpy())  # fmt: skip
    return out if q.dtype == torch.float32 else out.to(q.dtype)


@kernel(parallel=True)
def _attend(q, keys, values, starts, lengths, longest, scaling, out):  # type: ignore[no-untyped-def]
    heads, group, width = q.shape[1], q.shape[2], values.shape[1]
    segments, blocks = q.shape[0] * heads, (longest + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    parts = np.empty((segments, max(blocks, 1), padded(group), width + 2), np.float32)
    every = np.arange(BLOCK_TOKENS)
    for task in numba.prange(segments * blocks):
        s, block = task // blocks, task % blocks
        b, g = s // heads, s % heads
        first, stop = block * BLOCK_TOKENS, min(lengths[b, g], (block + 1) * BLOCK_TOKENS)
        if first < stop:
            start = starts[b, g] + first
            query, chosen = widened(q[b, g]), every[: stop - first]
            attend_block(query, keys, values, start, chosen, scaling, group, parts[s, block])
    for s in numba.prange(segments):
        b, g = s // heads, s % heads
        merge(parts[s], (lengths[b, g] + BLOCK_TOKENS - 1) // BLOCK_TOKENS, out[b, g])
