"""Caches that hold random keys and values, as if a prompt had been read: no prefill is needed to time a decode step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rocketkv.cache.layer import LayerCache
from rocketkv.cache.ragged import RaggedLayer, RowRule
from rocketkv.cache.store import pack
from rocketkv.policies.base import Policy
from rocketkv.types import Float, Tensor


@dataclass(frozen=True)
class Shape:
    """KV heads G, query heads per KV head R, head size D."""

    kv_heads: int
    group_size: int
    head_dim: int

    def pair_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one key and value in every KV head."""
        return self.kv_heads * 2 * self.head_dim * dtype.itemsize


def random_columns(
    shape: Shape, tokens: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Float[Tensor, "1 G T D"], Float[Tensor, "1 G T D"]]:
    """Keys and values of `tokens` tokens, standard normal, without a float32 copy of the whole."""
    made = []
    for _ in range(2):
        columns = torch.empty(1, shape.kv_heads, tokens, shape.head_dim, dtype=dtype)
        for head in range(shape.kv_heads):
            columns[0, head] = torch.randn(tokens, shape.head_dim, generator=generator)
        made.append(columns)
    return made[0], made[1]


def fill(state: LayerCache, shape: Shape, tokens: int, dtype: torch.dtype, generator: torch.Generator) -> LayerCache:
    """Let an empty layer take a random prompt through its own eviction; the dense attention is left out."""
    keys, values = random_columns(shape, tokens, dtype, generator)
    window = min(tokens, max(policy.slots[0].observes for policy in state.given_policies))
    state.extend(keys, values, None)
    q = torch.randn(1, shape.kv_heads, shape.group_size, max(window, 1), shape.head_dim, generator=generator)
    state.observe(q.to(dtype), None)
    state.end_chunk(tokens, shape.head_dim**-0.5)
    return state


def kept_layer(
    policy: Policy,
    shape: Shape,
    context_tokens: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    backend: str = "auto",
) -> LayerCache:
    """A layer as the plan for `context_tokens` leaves it, made directly: only what is kept is ever in memory.

    Raises ValueError for a dense plan, which keeps everything, and for a policy that keeps other numbers of tokens in
    every head.
    """
    plan = policy.plan(context_tokens, head_dim=shape.head_dim)
    if plan.dense:
        raise ValueError(f"{context_tokens} tokens fit in the budget of {policy.budget_tokens}: give a longer context")
    if policy.slots[0].retains:
        raise ValueError(f"{policy.name} keeps what it does not choose: fill its layer instead")
    state = LayerCache((policy,), backend=backend)
    keys, values = random_columns(shape, plan.kept_tokens, dtype, generator)
    kv = pack(keys, values, torch.ones(keys.shape[:3], dtype=torch.bool))
    state.columns, state.row_tokens, state.plans = context_tokens, torch.tensor([context_tokens]), [plan]
    rule = RowRule(policy.slots[1], policy.budget_tokens, plan.capacity_tokens)
    state.ragged = RaggedLayer(kv, [rule], backend=backend)
    return state
