# mypy: disable-error-code="no-untyped-def"
"""Quest's page scores on a GPU: both bounds of every dimension, then the softmax of `page_scores`."""

from __future__ import annotations

import triton.language as tl

from rocketkv.ops.kernel.triton import block, kernel, launch, precisions, require
from rocketkv.ops.page_bounds.reference import page_counts
from rocketkv.ops.page_scores.triton import BLOCK_PAGES, Logits, settle
from rocketkv.types import Float, Int, PageBounds, Tensor

BLOCK_DIMS = 16


@kernel
def _quest_logits(
    q, data, upper, lower, pitch, lengths, page_tokens, logits, peaks, totals, scaling, heads, width, R, D,
    READ: tl.constexpr, HEADS: tl.constexpr, PAGES: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(1).to(tl.int64)
    r, k, page = tl.arange(0, HEADS), tl.arange(0, DIMS), tl.program_id(0) * PAGES + tl.arange(0, PAGES)
    size, length = tl.load(page_tokens + segment // heads), tl.load(lengths + segment)
    tokens = tl.minimum(tl.maximum(length - page.to(tl.int64) * size, 0), size)
    step = tl.load(pitch + segment).to(tl.int64)
    high, low = data + tl.load(upper + segment), data + tl.load(lower + segment)
    logit = tl.zeros([HEADS, PAGES], tl.float32)
    for at in range(0, D, DIMS):
        d = at + k
        inside = (r < R)[:, None] & (d < D)[None, :]
        x = tl.load(q + (segment * R + r[:, None]) * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
        place, held = d[:, None] * step + page[None, :], (d < D)[:, None] & (tokens > 0)[None, :]
        most = tl.load(high + place, mask=held, other=0.0).to(tl.float32)
        least = tl.load(low + place, mask=held, other=0.0).to(tl.float32)
        logit = tl.dot(tl.maximum(x, 0.0), most, logit, input_precision=READ)
        logit = tl.dot(tl.minimum(x, 0.0), least, logit, input_precision=READ)
    logit = tl.where((tokens > 0)[None, :], logit * scaling, float("-inf"))
    settle(logit, tokens, logits, peaks, totals, segment, width, R, HEADS, PAGES)


def quest_scores(
    q: Float[Tensor, "B G R D"], bounds: PageBounds, lengths: Int[Tensor, "B G"], *, scaling: float
) -> tuple[Float[Tensor, "B G P"], int]:
    """`quest_scores.reference.quest_scores` on a GPU.

    Raises:
        BackendError: where a tensor is not on a CUDA device, or its dtype has no kernel.
    """
    require("quest_scores", q, bounds.data)
    pages = page_counts(bounds, lengths)
    room, lengths = Logits(q, int(pages.max())), lengths.contiguous()
    launch(
        _quest_logits,
        room.grid,
        q.contiguous(),
        bounds.data,
        bounds.upper.contiguous(),
        bounds.lower.contiguous(),
        bounds.pitch.contiguous(),
        lengths,
        bounds.page_tokens.contiguous(),
        room.values,
        room.peaks,
        room.totals,
        scaling,
        room.heads,
        room.width,
        room.group,
        q.shape[-1],
        READ=precisions(q, bounds.data)["READ"],
        HEADS=block(room.group),
        PAGES=BLOCK_PAGES,
        DIMS=BLOCK_DIMS,
    )
    positive, negative = (q > 0).any(2), (q < 0).any(2)
    two = (bounds.page_tokens > 1)[:, None, None]  # at one token per page, both bounds are the key
    rows = (positive | negative).long() + (two & positive & negative).long()  # [B, G, D]
    return room.averaged(lengths, bounds.page_tokens), int((rows.sum(-1) * pages).sum())
