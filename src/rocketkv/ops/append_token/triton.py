# mypy: disable-error-code="no-untyped-def"
"""One new token per segment into the flat store, on a GPU."""

from __future__ import annotations

import triton.language as tl

from rocketkv.ops.kernel.triton import block, kernel, launch, require
from rocketkv.types import Float, RaggedKV, Tensor


@kernel
def _append(new_keys, new_values, keys, values, starts, lengths, D, V, DIMS: tl.constexpr, VALUES: tl.constexpr):
    segment = tl.program_id(0).to(tl.int64)
    slot = tl.load(starts + segment).to(tl.int64) + tl.load(lengths + segment)
    d, v = tl.arange(0, DIMS), tl.arange(0, VALUES)
    tl.store(keys + slot * D + d, tl.load(new_keys + segment * D + d, mask=d < D), mask=d < D)
    tl.store(values + slot * V + v, tl.load(new_values + segment * V + v, mask=v < V), mask=v < V)


def append_token(keys: Float[Tensor, "B G D"], values: Float[Tensor, "B G Dv"], kv: RaggedKV) -> None:
    """`append_token.reference.append_token` on a GPU: `kv.lengths` becomes a new tensor.

    Raises:
        BackendError: where a tensor is not on a CUDA device, or its dtype has no kernel.
    """
    write_token(keys, values, kv)
    kv.lengths = kv.lengths + 1


def write_token(keys: Float[Tensor, "B G D"], values: Float[Tensor, "B G Dv"], kv: RaggedKV) -> None:
    """Write one token per segment behind its last one, and leave the lengths as they are."""
    require("append_token", keys, values, kv.keys, kv.values)
    batch, heads, head_dim = keys.shape
    launch(
        _append,
        (batch * heads,),
        keys.contiguous(),
        values.contiguous(),
        kv.keys,
        kv.values,
        kv.starts.contiguous(),
        kv.lengths.contiguous(),
        head_dim,
        values.shape[-1],
        DIMS=block(head_dim),
        VALUES=block(values.shape[-1]),
    )
