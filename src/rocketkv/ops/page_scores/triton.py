# mypy: disable-error-code="no-untyped-def"
"""Page scores on a GPU: choose dimensions, form logits by blocks of pages, then a softmax over all blocks."""

from __future__ import annotations

import torch
import triton.language as tl

from rocketkv.ops.kernel.triton import block, kernel, launch, precisions, require
from rocketkv.ops.page_bounds.reference import page_counts
from rocketkv.types import Float, Int, PageBounds, Tensor

BLOCK_PAGES = 128
BLOCK_RANK = 16


@kernel
def _choose(q, upper, lower, pitch, rank, dims, rows, factors, scaling, R, D, HEADS: tl.constexpr, DIMS: tl.constexpr):
    """Dimensions in reading order, where each one's row of bounds begins, and every head's logit factor."""
    segment = tl.program_id(0).to(tl.int64)
    r, d = tl.arange(0, HEADS), tl.arange(0, DIMS)
    inside = (r < R)[:, None] & (d < D)[None, :]
    x = tl.load(q + (segment * R + r[:, None]) * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
    size = tl.where(d < D, tl.sum(tl.abs(x), 0), -1.0)
    # A dimension's place is how many come before it: larger ones, and equal ones with a lower number.
    before = (size[:, None] > size[None, :]) | ((size[:, None] == size[None, :]) & (d[:, None] < d[None, :]))
    place = tl.sum(before.to(tl.int32), 0)
    high, low = tl.load(upper + segment).to(tl.int64), tl.load(lower + segment).to(tl.int64)
    row = tl.where(tl.sum(x, 0) >= 0, high, low) + d * tl.load(pitch + segment).to(tl.int64)
    tl.store(dims + segment * D + place, d, mask=d < D)
    tl.store(rows + segment * D + place, row, mask=d < D)
    read = (place < tl.load(rank + segment))[None, :]
    whole = tl.sum(tl.abs(x), 1)
    share = tl.sum(tl.where(read, tl.abs(x), 0.0), 1) / tl.where(whole > 0, whole, 1.0)
    # A head with nothing on these dimensions (or a zero query) has flat logits whatever the temperature.
    factor = scaling / tl.sqrt(tl.where(share > 0, share, 1.0))
    tl.store(factors + segment * R + r, factor, mask=r < R)


@kernel
def _logits(
    q, data, dims, rows, rank, factors, lengths, page_tokens, logits, peaks, totals, heads, width, R, D,
    READ: tl.constexpr, HEADS: tl.constexpr, PAGES: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(1).to(tl.int64)
    count = tl.load(rank + segment)
    r, k, page = tl.arange(0, HEADS), tl.arange(0, RANK), tl.program_id(0) * PAGES + tl.arange(0, PAGES)
    size, length = tl.load(page_tokens + segment // heads), tl.load(lengths + segment)
    tokens = tl.minimum(tl.maximum(length - page.to(tl.int64) * size, 0), size)
    logit = tl.zeros([HEADS, PAGES], tl.float32)
    if tl.program_id(0) * PAGES * size < length:
        for at in range(0, count, RANK):
            known = at + k < count
            row = tl.load(rows + segment * D + at + k, mask=known, other=0)
            dim = tl.load(dims + segment * D + at + k, mask=known, other=0)
            bound = tl.load(data + row[:, None] + page[None, :], mask=known[:, None] & (tokens > 0)[None, :], other=0.0)
            inside = (r < R)[:, None] & known[None, :]
            x = tl.load(q + (segment * R + r[:, None]) * D + dim[None, :], mask=inside, other=0.0)
            logit = tl.dot(x.to(tl.float32), bound.to(tl.float32), logit, input_precision=READ)
    factor = tl.load(factors + segment * R + r, mask=r < R, other=0.0)
    logit = tl.where((tokens > 0)[None, :], logit * factor[:, None], float("-inf"))
    settle(logit, tokens, logits, peaks, totals, segment, width, R, HEADS, PAGES)


@kernel
def settle(
    logit, tokens, logits, peaks, totals, segment, width, R, HEADS: tl.constexpr, PAGES: tl.constexpr
):  # fmt: skip
    """Store a block's logits [HEADS, PAGES] with their peak and the sum of exponentials, once for each token."""
    r, page = tl.arange(0, HEADS), tl.program_id(0) * PAGES + tl.arange(0, PAGES)
    peak = tl.max(logit, 1)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp(logit - safe[:, None]) * tokens[None, :].to(tl.float32), 1)
    part = (segment * tl.num_programs(0) + tl.program_id(0)) * R + r
    tl.store(peaks + part, peak, mask=r < R)
    tl.store(totals + part, total, mask=r < R)
    inside = (r < R)[:, None] & (page < width)[None, :]
    tl.store(logits + (segment * R + r[:, None]) * width + page[None, :], logit, mask=inside)


@kernel
def _average(
    logits, lengths, page_tokens, peaks, totals, scores, heads, width, R, HEADS: tl.constexpr, PAGES: tl.constexpr
):
    blocks, segment = tl.num_programs(0), tl.program_id(1).to(tl.int64)
    r, page = tl.arange(0, HEADS), tl.program_id(0) * PAGES + tl.arange(0, PAGES)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    for part in range(0, blocks):
        own = tl.load(peaks + (segment * blocks + part) * R + r, mask=r < R, other=float("-inf"))
        top = tl.maximum(top, own)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros([HEADS], tl.float32)
    for part in range(0, blocks):
        place = (segment * blocks + part) * R + r
        own = tl.load(peaks + place, mask=r < R, other=float("-inf"))
        total += tl.exp(own - top) * tl.load(totals + place, mask=r < R, other=0.0)
    inside = (r < R)[:, None] & (page < width)[None, :]
    logit = tl.load(logits + (segment * R + r[:, None]) * width + page[None, :], mask=inside, other=float("-inf"))
    share = tl.exp(logit - top[:, None]) / tl.where(total > 0, total, 1.0)[:, None]
    size, length = tl.load(page_tokens + segment // heads), tl.load(lengths + segment)
    score = tl.where(page.to(tl.int64) * size < length, tl.sum(share, 0) / R, float("-inf"))
    tl.store(scores + segment * width + page, score, mask=page < width)


class Logits:
    """Room for the logits of `width` pages per segment, with the peak and total of each block of them."""

    def __init__(self, q: Float[Tensor, "B G R D"], width: int) -> None:
        (batch, self.heads, self.group, _), self.width = q.shape, width
        self.segments, self.blocks = batch * self.heads, -(-width // BLOCK_PAGES)
        self.grid = (self.blocks, self.segments)
        self.values = torch.empty(self.segments, self.group, width, dtype=torch.float32, device=q.device)
        self.peaks = self.values.new_empty(self.segments, self.blocks, self.group)
        self.totals = torch.empty_like(self.peaks)

    def averaged(self, lengths: Int[Tensor, "B G"], page_tokens: Int[Tensor, "B"]) -> Float[Tensor, "B G P"]:
        """Softmax over tokens, averaged over the group; minus infinity behind the last page."""
        scores = self.values.new_empty(*lengths.shape, self.width)
        launch(
            _average,
            self.grid,
            self.values,
            lengths.contiguous(),
            page_tokens.contiguous(),
            self.peaks,
            self.totals,
            scores,
            self.heads,
            self.width,
            self.group,
            HEADS=block(self.group, least=1),
            PAGES=BLOCK_PAGES,
        )
        return scores


def page_scores(
    q: Float[Tensor, "B G R D"],
    bounds: PageBounds,
    lengths: Int[Tensor, "B G"],
    *,
    rank: Int[Tensor, "B G"],
    scaling: float,
) -> Float[Tensor, "B G P"]:
    """`page_scores.reference.page_scores` on a GPU.

    Raises:
        BackendError: where a tensor is not on a CUDA device, or its dtype has no kernel.
    """
    require("page_scores", q, bounds.data)
    width = int(page_counts(bounds, lengths).max())
    return page_scores_within(q, bounds, lengths, rank=rank, scaling=scaling, width=width)


def page_scores_within(
    q: Float[Tensor, "B G R D"],
    bounds: PageBounds,
    lengths: Int[Tensor, "B G"],
    *,
    rank: Int[Tensor, "B G"],
    scaling: float,
    width: int,
) -> Float[Tensor, "B G P"]:
    """Scores of `width` pages, at least as many as any segment has; nothing else in Python depends on the lengths."""
    q, head_dim = q.contiguous(), q.shape[-1]
    room, rank, lengths = Logits(q, width), rank.contiguous(), lengths.contiguous()
    dims = torch.empty(room.segments, head_dim, dtype=torch.int32, device=q.device)
    rows, factors = torch.empty_like(dims, dtype=torch.int64), room.peaks.new_empty(room.segments, room.group)
    launch(
        _choose,
        (room.segments,),
        q,
        bounds.upper.contiguous(),
        bounds.lower.contiguous(),
        bounds.pitch.contiguous(),
        rank,
        dims,
        rows,
        factors,
        scaling,
        room.group,
        head_dim,
        HEADS=block(room.group, least=1),
        DIMS=block(head_dim),
    )
    launch(
        _logits,
        room.grid,
        q,
        bounds.data,
        dims,
        rows,
        rank,
        factors,
        lengths,
        bounds.page_tokens.contiguous(),
        room.values,
        room.peaks,
        room.totals,
        room.heads,
        width,
        room.group,
        head_dim,
        READ=precisions(q, bounds.data)["READ"],
        HEADS=block(room.group),
        PAGES=BLOCK_PAGES,
        RANK=BLOCK_RANK,
    )
    return room.averaged(lengths, bounds.page_tokens)
