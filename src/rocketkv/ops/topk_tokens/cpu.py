"""From page scores to tokens on a CPU: a threshold found digit by digit, then one pass in position order."""

from __future__ import annotations

import numba
import numpy as np
import torch

from rocketkv.ops.errors import BackendError
from rocketkv.ops.kernel.cpu import kernel, set_threads, table
from rocketkv.types import Float, Int, Tensor


def topk_tokens(
    scores: Float[Tensor, "B G P"],
    lengths: Int[Tensor, "B G"],
    page_tokens: Int[Tensor, "B"],
    counts: Int[Tensor, "B G"],
    *,
    sink_tokens: int = 0,
    local_tokens: int = 0,
) -> Int[Tensor, "B G K"]:
    """The reference's tokens, exactly, in time that grows with pages and tokens taken.

    Raises:
        BackendError: for scores that are not on the CPU or not float32.
    """
    if scores.device.type != "cpu" or scores.dtype != torch.float32:
        found = scores.device.type if scores.device.type != "cpu" else str(scores.dtype)[6:]
        raise BackendError(f'topk_tokens/cpu needs float32 scores on the CPU, got {found}; use backend="reference"')
    wanted = table(counts)
    tokens = torch.zeros(*counts.shape, int(wanted.max()), dtype=torch.int64)
    set_threads()
    _tokens(scores.contiguous().numpy(), table(lengths), table(page_tokens), wanted, sink_tokens, local_tokens,
            tokens.numpy())  # fmt: skip
    return tokens


@kernel(fast=False, parallel=True)
def _tokens(scores, lengths, page_tokens, counts, sink, local, out):  # type: ignore[no-untyped-def]
    heads = scores.shape[1]
    for s in numba.prange(scores.shape[0] * heads):
        b, g = s // heads, s % heads
        best_tokens(scores[b, g], lengths[b, g], page_tokens[b], counts[b, g], sink, local, out[b, g])


@kernel(fast=False)
def best_tokens(scores, length, page_tokens, count, sink, local, out):  # type: ignore[no-untyped-def]
    """Write the `count` best of `length` tokens to `out` in position order."""
    sink = min(sink, count)
    newest = length - min(local, count - sink)  # sinks come first, then the newest tokens
    forced = min(sink, length) + length - max(newest, min(sink, length))
    pages = (length + page_tokens - 1) // page_tokens
    keys = np.empty(pages, np.uint32)
    for p in range(pages):
        keys[p] = _ordered(scores[p])
    threshold, left = _threshold(keys, count - forced, length, page_tokens, sink, newest)
    n = 0
    for p in range(pages):
        start, stop = p * page_tokens, min((p + 1) * page_tokens, length)
        if keys[p] < threshold and start >= sink and stop <= newest:
            continue
        for t in range(start, stop):
            if not (t < sink or t >= newest or keys[p] > threshold):
                if keys[p] < threshold or left == 0:
                    continue
                left -= 1
            if n < count:
                out[n] = t
                n += 1


@kernel(fast=False)
def _ordered(score):  # type: ignore[no-untyped-def]
    """An unsigned number that sorts as the float does; both zeros are one."""
    pattern = np.float32(score).view(np.uint32)
    if score == 0:
        pattern = np.uint32(0)
    if pattern & np.uint32(0x80000000):
        return np.uint32(~pattern)
    return np.uint32(pattern | np.uint32(0x80000000))


@kernel(fast=False)
def _threshold(keys, wanted, length, page_tokens, sink, newest):  # type: ignore[no-untyped-def]
    """The smallest key that is taken, and how many tokens of pages with that very key are; eleven bits at a time."""
    if wanted <= 0:
        return np.int64(1) << 32, 0
    found, known = np.int64(0), np.int64(0)
    tokens = np.empty(2048, np.int64)
    for shift in (21, 10, 0):
        digit = 2047 if shift else 1023
        tokens[:] = 0
        top = 0
        for p in range(keys.shape[0]):
            key = np.int64(keys[p])
            if key & known != found:
                continue
            # Sinks and newest tokens are taken anyway; what competes is the rest of the page.
            free = min((p + 1) * page_tokens, newest) - max(p * page_tokens, sink)
            if free > 0:
                place = (key >> shift) & digit
                tokens[place] += free
                if place > top:
                    top = int(place)
        while top > 0 and tokens[top] < wanted:
            wanted -= tokens[top]
            top -= 1
        found |= np.int64(top) << shift
        known |= np.int64(digit) << shift
    return found, wanted
