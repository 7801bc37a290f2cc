"""The dimension letters of docs/notation.md, as jaxtyping aliases, and the ragged containers that ops work on.

B batch, G KV heads, R query heads per KV head, D head size, C columns of a padded prompt, W window, P pages,
K tokens chosen, N tokens of a flat store. Shapes are checked at run time in tests only.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Bool", "Candidates", "Float", "Int", "PageBounds", "RaggedKV", "Tensor"]


@dataclass
class RaggedKV:
    """Keys and values of every (row, KV head), one after the other in flat memory; nothing is padded.

    Segment (b, g) owns `capacities[b, g]` slots from `starts[b, g]`; the first `lengths[b, g]` of them hold tokens in
    position order. The rest is room to grow and holds arbitrary values. `positions`, if kept, says which of its row's
    tokens each one is, counted from 0 without padding.
    """

    keys: Float[Tensor, "N D"]
    values: Float[Tensor, "N Dv"]
    starts: Int[Tensor, "B G"]
    lengths: Int[Tensor, "B G"]
    capacities: Int[Tensor, "B G"]
    positions: Int[Tensor, "N"] | None = None


@dataclass
class Candidates:
    """Which tokens of a store may be selected, where that is not all of them: slots within each segment, in order.

    Candidate i of segment (b, g) is token `slots[starts[b, g] + i]` of that segment of the store, for i below
    `lengths[b, g]`; there is room for `capacities[b, g]`.
    """

    slots: Int[Tensor, "n"]
    starts: Int[Tensor, "B G"]
    lengths: Int[Tensor, "B G"]
    capacities: Int[Tensor, "B G"]


@dataclass
class PageBounds:
    """Per page of S consecutive candidate tokens, the element-wise maximum and minimum of its keys, dimension-major.

    Element (d, p) of segment (b, g) lies at `data[upper[b, g] + d * pitch[b, g] + p]` (maximum) and the same from
    `lower[b, g]` (minimum), so that reading one dimension reads one contiguous row. A page of one token is its key:
    there `lower` equals `upper` and the numbers are held once. `pages` = ceil(candidates / page_tokens).
    """

    data: Float[Tensor, "M"]
    upper: Int[Tensor, "B G"]
    lower: Int[Tensor, "B G"]
    pitch: Int[Tensor, "B G"]
    page_tokens: Int[Tensor, "B"]
