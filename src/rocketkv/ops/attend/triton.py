# mypy: disable-error-code="no-untyped-def"
"""Exact attention on a GPU, split over the sequence: partial softmaxes, then one program per segment combines them.

With `slots` the tokens named there are read, without them the first `counts` of each segment (dense attention).
"""

from __future__ import annotations

import torch
import triton.language as tl

from rocketkv.ops.kernel.triton import PROGRAMS, block, kernel, launch, nearest, precisions, require, tile
from rocketkv.types import Float, Int, RaggedKV, Tensor


@kernel
def _partial(
    q, keys, values, starts, counts, slots, parts, peaks, totals, scaling, width, R, D, V,
    LISTED: tl.constexpr, READ: tl.constexpr, MIX: tl.constexpr,
    HEADS: tl.constexpr, DIMS: tl.constexpr, VALUES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    split, segment = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = tl.load(starts + segment).to(tl.int64)
    count = tl.load(counts + segment).to(tl.int64)
    r, d, v, n = tl.arange(0, HEADS), tl.arange(0, DIMS), tl.arange(0, VALUES), tl.arange(0, TOKENS)
    query = tl.load(
        q + (segment * R + r[:, None]) * D + d[None, :], mask=(r < R)[:, None] & (d < D)[None, :], other=0.0
    ).to(tl.float32)
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    out = tl.zeros([HEADS, VALUES], tl.float32)
    chunk = tl.cdiv(tl.cdiv(count, TOKENS), tl.num_programs(0)) * TOKENS  # of this segment's own length
    for at in range(split * chunk, tl.minimum(split * chunk + chunk, count), TOKENS):
        entry = at + n
        read = entry < count
        token = entry
        if LISTED:
            token = tl.load(slots + segment * width + entry, mask=read, other=0).to(tl.int64)
        row = start + tl.where(read, token, 0)
        key = tl.load(keys + row[None, :] * D + d[:, None], mask=read[None, :] & (d < D)[:, None], other=0.0)
        logit = tl.dot(query, key.to(tl.float32), input_precision=READ) * scaling
        logit = tl.where(read[None, :], logit, float("-inf"))
        higher = tl.maximum(peak, tl.max(logit, 1))
        shrink = tl.exp(peak - higher)
        weight = tl.exp(logit - higher[:, None])
        value = tl.load(values + row[:, None] * V + v[None, :], mask=read[:, None] & (v < V)[None, :], other=0.0)
        out = out * shrink[:, None] + tl.dot(weight, value.to(tl.float32), input_precision=MIX)
        total = total * shrink + tl.sum(weight, 1)
        peak = higher
    row = (segment * tl.num_programs(0) + split) * R + r
    tl.store(peaks + row, peak, mask=r < R)
    tl.store(totals + row, total, mask=r < R)
    tl.store(parts + row[:, None] * V + v[None, :], out, mask=(r < R)[:, None] & (v < V)[None, :])


@kernel
def _combine(parts, peaks, totals, result, splits, R, V, VALUES: tl.constexpr):
    r, segment = tl.program_id(0), tl.program_id(1).to(tl.int64)
    v = tl.arange(0, VALUES)
    peak = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    out = tl.zeros([VALUES], tl.float32)
    for split in range(0, splits):
        row = (segment * splits + split) * R + r
        own = tl.load(peaks + row)
        higher = tl.maximum(peak, own)
        safe = tl.where(higher == float("-inf"), 0.0, higher)  # nothing read so far
        shrink, weight = tl.exp(peak - safe), tl.exp(own - safe)
        out = out * shrink + weight * tl.load(parts + row * V + v, mask=v < V, other=0.0)
        total = total * shrink + weight * tl.load(totals + row)
        peak = higher
    out = out / tl.where(total > 0, total, 1.0)
    tl.store(result + (segment * R + r) * V + v, nearest(out, result.dtype.element_ty), mask=v < V)


def attend(
    q: Float[Tensor, "B G R D"],
    kv: RaggedKV,
    slots: Int[Tensor, "B G K"],
    counts: Int[Tensor, "B G"],
    *,
    scaling: float,
) -> Float[Tensor, "B G R Dv"]:
    """`attend.reference.attend` on a GPU: the grid follows K, the counts are read on the device.

    Raises:
        BackendError: where a tensor is not on a CUDA device, or its dtype has no kernel.
    """
    require("attend", q, kv.keys, kv.values)
    return attend_split(q, kv, slots, counts, width=slots.shape[-1], scaling=scaling)


def attend_split(
    q: Float[Tensor, "B G R D"],
    kv: RaggedKV,
    slots: Int[Tensor, "B G K"] | None,
    counts: Int[Tensor, "B G"],
    *,
    width: int,
    scaling: float,
) -> Float[Tensor, "B G R Dv"]:
    """Attention over the first `counts[b, g]` of the slots, or of the segment itself where no slots are given.

    `width`, about how many tokens a segment reads, decides the number of splits and nothing else.
    """
    (batch, heads, group, head_dim), value_dim = q.shape, kv.values.shape[1]
    segments, tokens = batch * heads, tile(max(head_dim, value_dim), kv.keys)
    splits = max(1, min(-(-width // tokens), PROGRAMS // max(segments, 1)))
    parts = torch.empty(segments, splits, group, value_dim, dtype=torch.float32, device=q.device)
    peaks, totals = parts.new_empty(segments, splits, group), parts.new_empty(segments, splits, group)
    out = q.new_empty(batch, heads, group, value_dim)
    launch(
        _partial,
        (splits, segments),
        q.contiguous(),
        kv.keys.contiguous(),
        kv.values.contiguous(),
        kv.starts.contiguous(),
        counts.contiguous(),
        counts if slots is None else slots.contiguous(),
        parts,
        peaks,
        totals,
        scaling,
        0 if slots is None else slots.shape[-1],
        group,
        head_dim,
        value_dim,
        LISTED=slots is not None,
        HEADS=block(group),
        DIMS=block(head_dim),
        VALUES=block(value_dim),
        TOKENS=tokens,
        **precisions(q, kv.keys, kv.values),
    )
    launch(_combine, (group, segments), parts, peaks, totals, out, splits, group, value_dim, VALUES=block(value_dim))
    return out
