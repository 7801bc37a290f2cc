"""Kernels are compiled, or loaded from the disk, before a clock starts: the first answer is timed like the second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from rocketkv.attend import decode_attend, prefill_attend
from rocketkv.budget import MIN_BUDGET_TOKENS
from rocketkv.cache.layer import LayerCache
from rocketkv.cache.observer import Read
from rocketkv.cache.store import GROWTH_TOKENS
from rocketkv.hf.shape import ModelShape, shape_of
from rocketkv.hf.weights import StreamedLinear
from rocketkv.ops.hybrid_attend.reference import SPLIT_TOKENS
from rocketkv.policies.base import Policy
from rocketkv.policies.full import FullKV
from rocketkv.types import Tensor

REMEMBERED = 16
"""Models and policies that are known to be warm; more only cost a few milliseconds each."""
STEPS = GROWTH_TOKENS + 2
"""From the first step over those in one call to the one that needs more room, and one behind it."""


@torch.inference_mode()
def warm_up(model: Any, policies: Sequence[Policy], *, tokens: int, backend: str = "auto") -> None:
    """Run what evicts, selects and attends under `policies` once on a few numbers, where CPU kernels will do that.

    Numba compiles for dtypes and numbers of dimensions, not for sizes. Nothing is done where every step will be dense:
    for the uncompressed model, and for caches that never hold more than the budget.

    Args:
        policies: the rows of one batch, or the one policy of all rows.
        tokens: the most that a row will hold, its answer included.

    Raises:
        BackendError: if the backend cannot run the model's dtype.
    """
    if model.device.type != "cpu" or backend not in ("auto", "cpu"):
        return
    _warm_weights(model)
    if any(not policy.whole and tokens > policy.budget_tokens for policy in policies):
        _warm_layers(shape_of(model.config), model.dtype, tuple(dict.fromkeys(policies)), backend)


@lru_cache(maxsize=REMEMBERED)
def _warm_layers(shape: ModelShape, dtype: torch.dtype, policies: tuple[Policy, ...], backend: str) -> None:
    """A short prompt and some steps, at the least budget: every policy alone, and all together.

    Alone, as some steps are one call only while a batch holds no other policy, and rows that end leave such batches.
    """
    rows = tuple(dict.fromkeys(policy.with_budget(MIN_BUDGET_TOKENS) for policy in policies))
    split = shape.kv_heads < torch.get_num_threads() and any(p.budget_tokens >= SPLIT_TOKENS for p in policies)
    for row in rows:
        _warm_rows(shape, dtype, (row,), split, backend)
    if len(rows) > 1:  # beside each other some may be short enough to be read whole
        _warm_rows(shape, dtype, (*rows, FullKV()), split, backend)


def _warm_rows(shape: ModelShape, dtype: torch.dtype, rows: tuple[Policy, ...], split: bool, backend: str) -> None:
    """One batch, in a layer that selects and in one that is left whole."""
    skipped = max(policy.skip_layers for policy in rows)
    for layer in {0, min(skipped, shape.full_layers - 1)}:
        state = LayerCache(rows, layer=layer, layers=shape.full_layers, share_prompt=True, backend=backend)
        prompt = max(policy.slots[0].observes for policy in rows) + 4 * MIN_BUDGET_TOKENS
        prefill_attend(*_ones(shape, dtype, 1, prompt), state, valid=None, scaling=1.0, dense=_no_attention)
        for _ in range(STEPS):
            decode_attend(*_ones(shape, dtype, len(rows), 1), state, scaling=1.0, dense=_no_attention)
        if split:
            state.observer = _look_on  # a step that is looked at runs in parts
            decode_attend(*_ones(shape, dtype, len(rows), 1), state, scaling=1.0, dense=_no_attention)


def _ones(shape: ModelShape, dtype: torch.dtype, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values."""
    q = torch.ones(rows, shape.kv_heads, shape.group_size, columns, shape.head_dim, dtype=dtype)
    return q, q[:, :, 0].clone(), q[:, :, 0].clone()


def _no_attention(q: Tensor, *_: Any) -> Tensor:
    """In the place of the model's own attention, which has no kernel of ours."""
    return q


def _look_on(cache: LayerCache, q: Tensor, scaling: float, reads: list[Read]) -> None:
    """Sees a step and keeps nothing."""


def _warm_weights(model: Any) -> None:
    """Every size of linear layer that a kernel of ours reads, on one token."""
    seen: set[tuple[int, int]] = set()
    for layer in model.modules():
        if isinstance(layer, StreamedLinear) and (size := (layer.in_features, layer.out_features)) not in seen:
            seen.add(size)
            layer(torch.zeros(1, layer.in_features, dtype=model.dtype))
