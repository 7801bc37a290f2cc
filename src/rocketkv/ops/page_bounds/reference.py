"""Element-wise maximum and minimum of the keys of each page: what selection reads instead of the keys."""

from __future__ import annotations

import torch

from rocketkv.ops.ragged import padded_index, segment_starts
from rocketkv.types import Bool, Float, Int, PageBounds, Tensor


def build_page_bounds(
    keys: Float[Tensor, "N D"],
    slots: Int[Tensor, "B G T"],
    lengths: Int[Tensor, "B G"],
    page_tokens: Int[Tensor, "B"],
    capacities: Int[Tensor, "B G"],
) -> PageBounds:
    """Lay out pages of `page_tokens[b]` consecutive candidates and bound their keys.

    Args:
        keys: the flat store.
        slots: where candidate t of segment (b, g) lies in it; the first `lengths[b, g]` count.
        page_tokens: S for each row, at least 1.
        capacities: candidates that each segment must have room for, at least its length.

    The last page may be ragged: it is bounded by its real tokens alone. Bounds are never loosened by padding.
    Paper: second stage, page-wise key maxima and minima.
    """
    head_dim = keys.shape[1]
    bounds = empty_bounds(keys, page_tokens, capacities)
    upper, lower, pitch = bounds.upper, bounds.lower, bounds.pitch
    for b in range(slots.shape[0]):
        size = int(page_tokens[b])
        for g in range(slots.shape[1]):
            length, width = int(lengths[b, g]), int(pitch[b, g])
            pages = -(-length // size)
            if pages == 0:
                continue
            taken = keys[slots[b, g, :length]]  # [T, D]
            for start, fold in ((upper, torch.amax), (lower, torch.amin)):
                # A ragged last page is filled up with its own last token, which changes neither bound.
                filled = torch.cat([taken, taken[-1:].expand(pages * size - length, -1)]).view(pages, size, head_dim)
                block = bounds.data[start[b, g] : start[b, g] + head_dim * width].view(head_dim, width)
                block[:, :pages] = fold(filled, dim=1).T
    return bounds


def empty_bounds(
    keys: Float[Tensor, "N D"], page_tokens: Int[Tensor, "B"], capacities: Int[Tensor, "B G"]
) -> PageBounds:
    """Room for the pages of `capacities` candidates per segment, one segment after the other, with arbitrary values."""
    pitch = -(-capacities // page_tokens[:, None])  # [B, G]
    single = (page_tokens == 1)[:, None]
    half = pitch * keys.shape[1]
    sizes = torch.where(single, half, 2 * half)
    upper = segment_starts(sizes)
    lower = torch.where(single, upper, upper + half)
    return PageBounds(keys.new_empty(int(sizes.sum())), upper, lower, pitch, page_tokens)


def update_page_bounds(bounds: PageBounds, keys: Float[Tensor, "B G D"], ordinals: Int[Tensor, "B G"]) -> None:
    """Take one new candidate key per segment into its page's bounds, in place.

    `ordinals[b, g]` is the new token's place among the candidates: a multiple of the page size opens a new page.
    """
    page = ordinals // bounds.page_tokens[:, None]
    opens = (ordinals % bounds.page_tokens[:, None] == 0)[..., None]
    offset = torch.arange(keys.shape[-1], device=keys.device) * bounds.pitch[..., None] + page[..., None]  # [B, G, D]
    for start, fold in ((bounds.upper, torch.maximum), (bounds.lower, torch.minimum)):
        index = start[..., None] + offset
        bounds.data[index] = torch.where(opens, keys, fold(bounds.data[index], keys))


def page_counts(bounds: PageBounds, lengths: Int[Tensor, "B G"]) -> Int[Tensor, "B G"]:
    """Pages in use: ceil(candidates / page_tokens)."""
    return -(-lengths // bounds.page_tokens[:, None])


def gather_bounds(
    bounds: PageBounds,
    dims: Int[Tensor, "B G r"],
    take_upper: Bool[Tensor, "B G r"],
    pages: Int[Tensor, "B G"],
) -> tuple[Float[Tensor, "B G r P"], Bool[Tensor, "B G P"]]:
    """The rows of the chosen dimensions, maximum where `take_upper`, and the mask of pages in use [B, G, P]."""
    start = torch.where(take_upper, bounds.upper[..., None], bounds.lower[..., None])
    start = start + dims * bounds.pitch[..., None]  # [B, G, r]
    index, valid = padded_index(torch.zeros_like(pages), pages, int(pages.max()))
    return bounds.data[start[..., None] + index[..., None, :]], valid
