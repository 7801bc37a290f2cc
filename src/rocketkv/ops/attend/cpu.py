"""Exact attention over chosen tokens on a CPU: rows are fetched ahead, blocks of tokens are merged in order."""

from __future__ import annotations

import numba
import numpy as np
import torch

from rocketkv.ops.kernel.cpu import bits, kernel, set_threads, table
from rocketkv.ops.vector.cpu import AHEAD, add1, add4, dots4, exponentials, fetch_row, padded, peak, widened
from rocketkv.types import Float, Int, RaggedKV, Tensor

BLOCK_TOKENS = 512
"""Tokens of one task. A segment's blocks are the same whatever the batch and the threads, and so is its result."""


def attend(
    q: Float[Tensor, "B G R D"],
    kv: RaggedKV,
    slots: Int[Tensor, "B G K"],
    counts: Int[Tensor, "B G"],
    *,
    scaling: float,
) -> Float[Tensor, "B G R Dv"]:
    """The reference's output, summed in float32.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    out = torch.empty(*q.shape[:3], kv.values.shape[1], dtype=torch.float32, device="cpu")
    set_threads()
    _attend(bits("attend", q), bits("attend", kv.keys), bits("attend", kv.values), table(kv.starts), table(slots),
            table(counts), np.float32(scaling), out.numpy())  # fmt: skip
    return out if q.dtype == torch.float32 else out.to(q.dtype)


@kernel(parallel=True)
def _attend(q, keys, values, starts, slots, counts, scaling, out):  # type: ignore[no-untyped-def]
    heads, group, width = q.shape[1], q.shape[2], values.shape[1]
    segments, blocks = q.shape[0] * heads, (slots.shape[2] + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    parts = np.empty((segments, max(blocks, 1), padded(group), width + 2), np.float32)
    for task in numba.prange(segments * blocks):
        s, block = task // blocks, task % blocks
        b, g = s // heads, s % heads
        first, stop = block * BLOCK_TOKENS, min(counts[b, g], (block + 1) * BLOCK_TOKENS)
        if first < stop:
            query, chosen = widened(q[b, g]), slots[b, g, first:stop]
            attend_block(query, keys, values, starts[b, g], chosen, scaling, group, parts[s, block])
    for s in numba.prange(segments):
        b, g = s // heads, s % heads
        merge(parts[s], (counts[b, g] + BLOCK_TOKENS - 1) // BLOCK_TOKENS, out[b, g])


@kernel()
def attend_block(q, keys, values, start, slots, scaling, group, part):  # type: ignore[no-untyped-def]
    """One block's unnormalised output [R, Dv], and behind it each head's largest logit and sum of weights.

    q and part have rows to a multiple of four, of which the first `group` are real.
    """
    rows, head_dim = q.shape
    n, width = slots.shape[0], values.shape[1]
    flat_q, flat_keys, flat_values = q.reshape(-1), keys.reshape(-1), values.reshape(-1)
    weights = np.empty((rows, n), np.float32)
    for i in range(min(AHEAD, n)):
        fetch_row(flat_keys, (start + slots[i]) * head_dim, head_dim)
    for r in range(0, rows, 4):
        dots4(flat_q, r, head_dim, flat_keys, start, slots, weights, flat_values, width)
    for r in range(group):
        row = weights[r]
        for i in range(n):
            row[i] *= scaling
        top = max(peak(row), np.float32(-3.4028234663852886e38))
        part[r, width], part[r, width + 1] = top, exponentials(row, top)
    part[:, :width] = 0
    for r in range(0, rows, 4):
        add4(weights, r, flat_values, start, width, slots, part)


@kernel()
def merge(parts, blocks, out):  # type: ignore[no-untyped-def]
    """The softmax over all blocks from each one's own; zeros of no block."""
    group, width = out.shape
    for r in range(group):
        out[r] = 0
        if blocks == 0:
            continue
        top = peak(parts[:blocks, r, width].copy())
        total = np.float32(0)
        for block in range(blocks):
            factor = np.float32(np.exp(parts[block, r, width] - top))
            total += factor * parts[block, r, width + 1]
            add1(out[r], factor, parts[block, r], 0)
        for d in range(width):
            out[r, d] /= total
