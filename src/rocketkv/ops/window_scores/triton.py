# mypy: disable-error-code="no-untyped-def"
"""Window scores on a GPU, in two passes over the keys: every query's softmax peak and total, then the votes."""

from __future__ import annotations

import torch
import triton.language as tl

from rocketkv.ops.kernel.triton import block, kernel, launch, precisions, require, tile
from rocketkv.types import Float, Int, Tensor

SPLITS, SPLIT_COLUMNS = 32, 1024


@kernel
def _queries(queries, segment, row, counted, rows, D, DIMS: tl.constexpr):
    d = tl.arange(0, DIMS)
    place = (segment * rows + row[:, None]) * D + d[None, :]
    return tl.load(queries + place, mask=counted[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)


@kernel
def _keys(keys, column, held, pitch, D, DIMS: tl.constexpr):
    d = tl.arange(0, DIMS)
    place = column[None, :].to(tl.int64) * pitch + d[:, None]
    return tl.load(keys + place, mask=held[None, :] & (d < D)[:, None], other=0.0).to(tl.float32)


@kernel
def _logits(x, key, place, counted, column, held, scaling, columns, window, READ: tl.constexpr):
    """Logits [rows, columns]; minus infinity where the query does not count, or stands before the token."""
    seen = counted[:, None] & held[None, :] & (column[None, :] <= columns - window + place[:, None])
    return tl.where(seen, tl.dot(x, key, input_precision=READ) * scaling, float("-inf"))


@kernel
def _totals(
    queries, query_counts, keys, key_counts, peaks, totals, scaling, heads, columns, window, rows, chunk,
    key_row, key_head, pitch, D,
    READ: tl.constexpr, DIMS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    place = row % window
    count = tl.minimum(tl.load(query_counts + segment // heads), columns)
    counted = (row < rows) & (place >= window - count)
    first = columns - tl.load(key_counts + segment)
    x = _queries(queries, segment, row, counted, rows, D, DIMS)
    mine = keys + (segment // heads) * key_row + (segment % heads) * key_head
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    begin = tl.program_id(0) * chunk
    for at in range(begin, tl.minimum(begin + chunk, columns), COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        held = (column >= first) & (column < columns)
        key = _keys(mine, column, held, pitch, D, DIMS)
        logit = _logits(x, key, place, counted, column, held, scaling, columns, window, READ)
        higher = tl.maximum(peak, tl.max(logit, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - safe) + tl.sum(tl.exp(logit - safe[:, None]), 1)
        peak = higher
    part = (tl.program_id(0) * tl.num_programs(1) + segment) * rows + row
    tl.store(peaks + part, peak, mask=row < rows)
    tl.store(totals + part, total, mask=row < rows)


@kernel
def _votes(
    queries, query_counts, keys, key_counts, peaks, totals, scores, scaling, heads, columns, window, rows,
    key_row, key_head, pitch, D,
    READ: tl.constexpr, DIMS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.minimum(tl.load(query_counts + segment // heads), columns)
    held = (column >= columns - tl.load(key_counts + segment)) & (column < columns - count)
    mine = keys + (segment // heads) * key_row + (segment % heads) * key_head
    key = _keys(mine, column, held, pitch, D, DIMS)
    votes = tl.zeros([COLUMNS], tl.float32)
    for at in range(0, rows, ROWS):
        row = at + tl.arange(0, ROWS)
        place = row % window
        counted = (row < rows) & (place >= window - count)
        x = _queries(queries, segment, row, counted, rows, D, DIMS)
        logit = _logits(x, key, place, counted, column, held, scaling, columns, window, READ)
        peak = tl.load(peaks + segment * rows + row, mask=counted, other=0.0)
        total = tl.load(totals + segment * rows + row, mask=counted, other=1.0)
        votes += tl.sum(tl.exp(logit - peak[:, None]) / total[:, None], 0)
    score = tl.where(held & (count > 0), votes, float("-inf"))
    tl.store(scores + segment * columns + column, score, mask=column < columns)


def window_scores(
    queries: Float[Tensor, "B G R W D"],
    query_counts: Int[Tensor, "B"],
    keys: Float[Tensor, "B G C D"],
    key_counts: Int[Tensor, "B G"],
    *,
    scaling: float,
) -> Float[Tensor, "B G C"]:
    """`window_scores.reference.window_scores` on a GPU; memory beyond the scores is O(R W), whatever C.

    Raises:
        BackendError: where a tensor is not on a CUDA device, or its dtype has no kernel.
    """
    require("window_scores", queries, keys)
    batch, heads, group, window, head_dim = queries.shape
    columns, rows, segments = keys.shape[2], group * window, batch * heads
    if keys.stride(-1) != 1:
        keys = keys.contiguous()
    size = tile(head_dim, keys)
    splits = min(-(-columns // SPLIT_COLUMNS), SPLITS)
    chunk = -(-columns // splits // size) * size
    peaks = torch.empty(splits, segments, rows, dtype=torch.float32, device=keys.device)
    totals = torch.empty_like(peaks)
    scores = peaks.new_empty(batch, heads, columns)
    read = (queries.contiguous(), query_counts.contiguous(), keys, key_counts.contiguous())
    pitches = (*keys.stride()[:3], head_dim)
    blocks = {
        "READ": precisions(queries, keys)["READ"],
        "DIMS": block(head_dim),
        "ROWS": size,
        "COLUMNS": size,
    }
    shape = (scaling, heads, columns, window, rows)
    launch(_totals, (splits, segments, -(-rows // size)), *read, peaks, totals, *shape, chunk, *pitches, **blocks)
    peak = peaks.amax(0).clamp(min=torch.finfo(peaks.dtype).min)  # a query that does not count sees nothing
    total = (totals * (peaks - peak).exp()).sum(0).clamp(min=torch.finfo(peaks.dtype).tiny)
    launch(_votes, (-(-columns // size), segments), *read, peak, total, scores, *shape, *pitches, **blocks)
    return scores
