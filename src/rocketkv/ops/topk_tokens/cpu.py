"""From page scores to tokens on a CPU: a threshold found bit by bit, then one pass in position order."""

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
    tokens = torch.zeros(*counts.shape, int(wanted.max()), dtype=torch.int64, device="cpu")
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
    keys, free = np.empty(pages, np.int32), np.empty(pages, np.int32)
    for p in range(pages):
        keys[p] = _ordered(scores[p])
        free[p] = np.int32(page_tokens)
    # Sinks and newest tokens are taken anyway; what competes is the rest of their pages.
    for p in range(min((sink + page_tokens - 1) // page_tokens, pages)):
        free[p] = _competing(p, page_tokens, sink, newest)
    for p in range(newest // page_tokens, pages):
        free[p] = _competing(p, page_tokens, sink, newest)
    threshold, left = _threshold(keys, free, count - forced)
    some = np.empty(pages + 1, np.int64)  # pages of which some tokens are taken
    m = 0
    for p in range(pages):
        some[m] = p
        m += int(keys[p] >= threshold) | int(p * page_tokens < sink) | int(min((p + 1) * page_tokens, length) > newest)
    n = 0
    for i in range(m):
        p = some[i]
        for t in range(p * page_tokens, min((p + 1) * page_tokens, length)):
            if not (t < sink or t >= newest or keys[p] > threshold):
                if keys[p] < threshold or left == 0:
                    continue
                left -= 1
            if n < count:
                out[n] = t
                n += 1


@kernel(fast=False)
def _competing(page, page_tokens, sink, newest):  # type: ignore[no-untyped-def]
    """Tokens of a page behind the sinks and before the newest ones."""
    return max(min((page + 1) * page_tokens, newest) - max(page * page_tokens, sink), 0)


@kernel(fast=False)
def _ordered(score):  # type: ignore[no-untyped-def]
    """An int32 number that sorts as the float does; both zeros are one."""
    pattern = np.float32(score + np.float32(0)).view(np.int32)  # minus zero plus zero is plus zero
    return np.int32(pattern ^ ((pattern >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@kernel(fast=False)
def _threshold(keys, free, wanted):  # type: ignore[no-untyped-def]
    """The smallest key that is taken, and how many tokens of pages with that very key are; one bit at a time."""
    if wanted <= 0:
        return np.int64(1) << 32, np.int64(0)
    least = np.int64(-(1 << 31))
    for bit in range(31, -1, -1):
        higher = least + (np.int64(1) << bit)
        tokens = _tokens_from(keys, free, np.int32(higher))
        if tokens >= wanted:
            least = higher
        if tokens == wanted:
            break
    above = _tokens_from(keys, free, np.int32(least + 1)) if least < 0x7FFFFFFF else 0
    return least, wanted - above


@kernel(fast=False)
def _tokens_from(keys, free, key):  # type: ignore[no-untyped-def]
    """Free tokens of the pages whose key is at least `key`."""
    tokens = np.int32(0)
    for p in range(keys.shape[0]):
        tokens = np.int32(tokens + (free[p] if keys[p] >= key else np.int32(0)))
    return tokens
