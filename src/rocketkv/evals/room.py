"""How many policies can decode beside each other: bytes of a row, estimated from its plan, against a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rocketkv.cache.store import GROWTH_TOKENS
from rocketkv.hf.memory import available_bytes
from rocketkv.hf.shape import ModelShape, shape_of
from rocketkv.policies.base import Policy

DEFAULT_SHARE = 0.5
"""Of the memory that is free, where no limit is given."""


def default_limit_bytes() -> int:
    """Half of the memory that is free now."""
    return int(DEFAULT_SHARE * available_bytes())


def prompt_bytes(model: Any, tokens: int) -> int:
    """Keys and values of a whole prompt, over all layers."""
    shape = shape_of(model.config)
    return int(shape.full_layers * tokens * _pair_bytes(model, shape) + _sliding_bytes(model, shape, tokens))


def row_bytes(model: Any, policy: Policy, *, context_tokens: int, new_tokens: int) -> int:
    """What one row holds when its answer is complete: pairs, bounds and room to grow, over all layers."""
    shape = shape_of(model.config)
    plan = policy.plan(context_tokens, head_dim=shape.head_dim)
    evictor, selector = policy.slots
    pairs: float = context_tokens + new_tokens
    if not plan.dense:
        readable = plan.kept_tokens + new_tokens
        equivalent = evictor.equivalent_tokens(context_tokens)
        if equivalent is not None:
            pairs = equivalent + new_tokens
        elif not evictor.retains:
            pairs = readable
        layout = selector.layout(plan.budget_tokens, readable)
        if layout is not None:
            pairs += math.ceil(readable / layout[0]) * (0.5 if layout[0] == 1 else 1.0)
        pairs += max(GROWTH_TOKENS, pairs / 16)
    skipped = min(policy.skip_layers, shape.full_layers)
    per_layer = (shape.full_layers - skipped) * pairs + skipped * (context_tokens + new_tokens)
    return int(per_layer * _pair_bytes(model, shape) + _sliding_bytes(model, shape, context_tokens + new_tokens))


def batches_within(sizes_bytes: Sequence[int], limit_bytes: int) -> list[list[int]]:
    """Rows 0, 1, ... in order, as few batches as fit in the limit one at a time; a row above it is alone."""
    batches: list[list[int]] = []
    used = 0
    for row, size in enumerate(sizes_bytes):
        if not batches or used + size > limit_bytes:
            batches.append([])
            used = 0
        batches[-1].append(row)
        used += size
    return batches


def _pair_bytes(model: Any, shape: ModelShape) -> int:
    return int(shape.kv_heads * 2 * shape.head_dim * model.dtype.itemsize)


def _sliding_bytes(model: Any, shape: ModelShape, tokens: int) -> int:
    return (shape.layers - shape.full_layers) * min(tokens, shape.sliding_tokens) * _pair_bytes(model, shape)
