# mypy: disable-error-code="no-untyped-def"
"""Page bounds on a GPU: one program per segment and block of pages builds, one per segment takes in a token."""

from __future__ import annotations

import triton.language as tl

from rocketkv.ops.kernel.triton import block, kernel, launch, require
from rocketkv.ops.ragged import segment_starts
from rocketkv.types import Float, Int, PageBounds, Tensor

BLOCK_PAGES = 32


@kernel
def _build(
    keys,
    slots,
    lengths,
    page_tokens,
    upper,
    lower,
    pitch,
    data,
    heads,
    width,
    D,
    DIMS: tl.constexpr,
    PAGES: tl.constexpr,
):
    segment = tl.program_id(1).to(tl.int64)
    size = tl.load(page_tokens + segment // heads).to(tl.int64)
    length = tl.load(lengths + segment).to(tl.int64)
    page = tl.program_id(0) * PAGES + tl.arange(0, PAGES).to(tl.int64)
    d = tl.arange(0, DIMS)
    in_use = page * size < length
    high = tl.full([PAGES, DIMS], float("-inf"), tl.float32)
    low = tl.full([PAGES, DIMS], float("inf"), tl.float32)
    for i in range(0, size):
        token = page * size + i
        slot = tl.load(slots + segment * width + token, mask=token < length, other=0).to(tl.int64)
        held = (token < length)[:, None] & (d < D)[None, :]
        key = tl.load(keys + slot[:, None] * D + d[None, :], mask=held, other=0.0).to(tl.float32)
        high = tl.where(held, tl.maximum(high, key, propagate_nan=tl.PropagateNan.ALL), high)
        low = tl.where(held, tl.minimum(low, key, propagate_nan=tl.PropagateNan.ALL), low)
    place = d.to(tl.int64)[:, None] * tl.load(pitch + segment).to(tl.int64) + page[None, :]  # dimension-major
    written = (d < D)[:, None] & in_use[None, :]
    tl.store(data + tl.load(upper + segment) + place, tl.trans(high), mask=written)
    tl.store(data + tl.load(lower + segment) + place, tl.trans(low), mask=written)


@kernel
def _update(keys, ordinals, page_tokens, upper, lower, pitch, data, heads, D, DIMS: tl.constexpr):
    segment = tl.program_id(0).to(tl.int64)
    size = tl.load(page_tokens + segment // heads).to(tl.int64)
    ordinal = tl.load(ordinals + segment).to(tl.int64)
    d = tl.arange(0, DIMS)
    key = tl.load(keys + segment * D + d, mask=d < D, other=0.0).to(tl.float32)
    place = d.to(tl.int64) * tl.load(pitch + segment).to(tl.int64) + ordinal // size
    high, low = data + tl.load(upper + segment) + place, data + tl.load(lower + segment) + place
    # A page that opens takes the key as it is: what its memory held before is not read.
    known = tl.where(ordinal % size == 0, 0, D)
    old_high = tl.load(high, mask=d < known, other=float("-inf")).to(tl.float32)
    old_low = tl.load(low, mask=d < known, other=float("inf")).to(tl.float32)
    tl.store(high, tl.maximum(old_high, key, propagate_nan=tl.PropagateNan.ALL), mask=d < D)
    tl.store(low, tl.minimum(old_low, key, propagate_nan=tl.PropagateNan.ALL), mask=d < D)


def build_page_bounds(
    keys: Float[Tensor, "N D"],
    slots: Int[Tensor, "B G T"],
    lengths: Int[Tensor, "B G"],
    page_tokens: Int[Tensor, "B"],
    capacities: Int[Tensor, "B G"],
) -> PageBounds:
    """`page_bounds.reference.build_page_bounds` on a GPU.

    Raises:
        BackendError: where the keys are not on a CUDA device, or their dtype has no kernel.
    """
    require("page_bounds", keys)
    head_dim, (batch, heads, width) = keys.shape[1], slots.shape
    pitch = -(-capacities // page_tokens[:, None])  # [B, G]
    half = pitch * head_dim
    held = half * (2 - (page_tokens == 1).long())[:, None]  # a page of one token is its key, held once
    upper = segment_starts(held)
    lower = upper + held - half
    bounds = PageBounds(keys.new_empty(int(held.sum())), upper, lower, pitch, page_tokens)
    pages = int((-(-lengths // page_tokens[:, None])).max())
    launch(
        _build,
        (-(-pages // BLOCK_PAGES), batch * heads),
        keys.contiguous(),
        slots.contiguous(),
        lengths.contiguous(),
        page_tokens.contiguous(),
        upper,
        lower,
        pitch,
        bounds.data,
        heads,
        width,
        head_dim,
        DIMS=block(head_dim),
        PAGES=BLOCK_PAGES,
    )
    return bounds


def update_page_bounds(bounds: PageBounds, keys: Float[Tensor, "B G D"], ordinals: Int[Tensor, "B G"]) -> None:
    """`page_bounds.reference.update_page_bounds` on a GPU: no shape and no Python value depends on the ordinals.

    Raises:
        BackendError: where the keys are not on a CUDA device, or their dtype has no kernel.
    """
    require("page_bounds", keys, bounds.data)
    batch, heads, head_dim = keys.shape
    launch(
        _update,
        (batch * heads,),
        keys.contiguous(),
        ordinals.contiguous(),
        bounds.page_tokens.contiguous(),
        bounds.upper.contiguous(),
        bounds.lower.contiguous(),
        bounds.pitch.contiguous(),
        bounds.data,
        heads,
        head_dim,
        DIMS=block(head_dim),
    )
