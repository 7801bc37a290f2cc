"""Page bounds on a CPU: built sixteen pages at a time, updated in place."""

from __future__ import annotations

import numba
import numpy as np

from rocketkv.ops.kernel.cpu import bits, kernel, set_threads, table
from rocketkv.ops.page_bounds.reference import empty_bounds
from rocketkv.ops.vector.cpu import prefetch, widen
from rocketkv.types import Float, Int, PageBounds, Tensor

TILE = 16
"""Pages written together, so that a cache line of the dimension-major layout is filled at once."""


def build_page_bounds(
    keys: Float[Tensor, "N D"],
    slots: Int[Tensor, "B G T"],
    lengths: Int[Tensor, "B G"],
    page_tokens: Int[Tensor, "B"],
    capacities: Int[Tensor, "B G"],
) -> PageBounds:
    """The reference's bounds, bit for bit.

    Raises:
        BackendError: for keys that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    stored = bits("page_bounds", keys)
    bounds = empty_bounds(keys, page_tokens, capacities)
    set_threads()
    _build(stored, table(slots), table(lengths), table(page_tokens), bits("page_bounds", bounds.data),
           table(bounds.upper), table(bounds.lower), table(bounds.pitch))  # fmt: skip
    return bounds


@kernel(fast=False, parallel=True)
def _build(keys, slots, lengths, page_tokens, data, upper, lower, pitch):  # type: ignore[no-untyped-def]
    heads, head_dim = slots.shape[1], keys.shape[1]
    widest = 0
    for b in range(slots.shape[0]):
        for g in range(heads):
            widest = max(widest, (lengths[b, g] + page_tokens[b] - 1) // page_tokens[b])
    tiles = (widest + TILE - 1) // TILE
    for task in numba.prange(slots.shape[0] * heads * tiles):
        s, first = task // tiles, task % tiles * TILE
        b, g = s // heads, s % heads
        length, size = lengths[b, g], page_tokens[b]
        stop = min(first + TILE, (length + size - 1) // size)
        high, low = np.empty((TILE, head_dim), keys.dtype), np.empty((TILE, head_dim), keys.dtype)
        for p in range(first, stop):
            high[p - first] = low[p - first] = keys[slots[b, g, p * size]]
            for t in range(p * size + 1, min((p + 1) * size, length)):
                _fold(high[p - first], low[p - first], keys[slots[b, g, t]])
        for d in range(head_dim):
            for p in range(first, stop):
                data[upper[b, g] + d * pitch[b, g] + p] = high[p - first, d]
                data[lower[b, g] + d * pitch[b, g] + p] = low[p - first, d]


@kernel(fast=False)
def _fold(high, low, key):  # type: ignore[no-untyped-def]
    """Take one key into the bounds of its page."""
    for d in range(key.shape[0]):
        value = widen(key[d])
        if value > widen(high[d]):
            high[d] = key[d]
        if value < widen(low[d]):
            low[d] = key[d]


def update_page_bounds(bounds: PageBounds, keys: Float[Tensor, "B G D"], ordinals: Int[Tensor, "B G"]) -> None:
    """Take one new candidate key per segment into its page's bounds, in place; see the reference.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    _update(bits("page_bounds", bounds.data), table(bounds.upper), table(bounds.lower), table(bounds.pitch),
            table(bounds.page_tokens), bits("page_bounds", keys), table(ordinals))  # fmt: skip


@kernel(fast=False)
def _update(data, upper, lower, pitch, page_tokens, keys, ordinals):  # type: ignore[no-untyped-def]
    for b in range(keys.shape[0]):
        for g in range(keys.shape[1]):
            place = upper[b, g], lower[b, g], pitch[b, g]
            take_key(data, place, page_tokens[b], keys[b, g], ordinals[b, g])


@kernel(fast=False)
def take_key(data, place, page_tokens, key, ordinal):  # type: ignore[no-untyped-def]
    """Take a segment's candidate number `ordinal` into the bounds of its page."""
    upper, lower, pitch = place
    page, opens = ordinal // page_tokens, ordinal % page_tokens == 0
    for d in range(key.shape[0]):  # each is in a cache line of its own: ask for all before the first is needed
        prefetch(data, upper + d * pitch + page)
        prefetch(data, lower + d * pitch + page)
    for d in range(key.shape[0]):
        top, bottom = upper + d * pitch + page, lower + d * pitch + page
        if opens or widen(key[d]) > widen(data[top]):
            data[top] = key[d]
        if opens or widen(key[d]) < widen(data[bottom]):
            data[bottom] = key[d]
