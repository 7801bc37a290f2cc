"""One layer with random queries, keys and values under any method: what it holds and reads needs no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rocketkv.attend import decode_attend, prefill_attend
from rocketkv.cache.layer import LayerCache
from rocketkv.policies.base import Policy
from rocketkv.policies.registry import make_policy
from rocketkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a synthetic attention layer, float32: G KV heads of R query heads, head size D."""

    kv_heads: int = 4
    group_size: int = 2
    head_dim: int = 64

    @property
    def pair_bytes(self) -> int:
        """Bytes of one key and its value."""
        return 2 * self.head_dim * 4


def policy_for(name: str, budget_tokens: int, shape: LayerShape) -> Policy:
    """The method `name` on one layer of `shape`; what is calibrated elsewhere is made up here.

    DuoAttention has one retrieval head in four (at least one), Loki random orthonormal bases.
    """
    full_heads = max(1, shape.kv_heads // 4)
    pattern = (tuple(float(head < full_heads) for head in range(shape.kv_heads)),)
    generator = torch.Generator().manual_seed(1)
    square = torch.randn(1, shape.kv_heads, shape.head_dim, shape.head_dim, generator=generator)
    made_up: dict[str, dict[str, Any]] = {
        "duoattention": {"pattern": pattern},
        "loki": {"bases": torch.linalg.qr(square).Q},
    }
    options: dict[str, Any] = {}
    for part in name.split("+"):
        options |= made_up.get(part, {})
    return make_policy(name, budget_tokens, **options)


class SyntheticLayer:
    """A layer's cache under a policy, fed with random tokens. `newest_query` [B, G, R, D] is that of the last step."""

    def __init__(self, policy: Policy, shape: LayerShape, *, planned_new_tokens: int = 0, seed: int = 0) -> None:
        self.shape = shape
        self.cache = LayerCache((policy,), planned_new_tokens=planned_new_tokens, backend="reference")
        self.newest_query: Float[Tensor, "B G R D"] | None = None
        self._rows = 1
        self._generator = torch.Generator().manual_seed(seed)

    def prompt(self, *tokens: int) -> None:
        """Read a prompt of so many tokens for each row. Its attention is left out: what is kept does not need it."""
        self._rows, columns = len(tokens), max(tokens)
        valid = None
        if min(tokens) < columns:
            valid = torch.arange(columns) >= columns - torch.tensor(tokens)[:, None]  # [B, C]
        prefill_attend(*self._random(columns), self.cache, valid=valid, scaling=self._scaling, dense=_nothing)

    def steps(self, tokens: int) -> Iterator[LayerCache]:
        """Decode `tokens` tokens; the layer's cache after each."""
        for _ in range(tokens):
            q, keys, values = self._random(1)
            self.newest_query = q[:, :, :, 0]
            decode_attend(q, keys, values, self.cache, scaling=self._scaling, dense=_nothing)
            yield self.cache

    @property
    def _scaling(self) -> float:
        return self.shape.head_dim**-0.5

    def _random(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        q = (self._rows, shape.kv_heads, shape.group_size, tokens, shape.head_dim)
        kv = (self._rows, shape.kv_heads, tokens, shape.head_dim)
        return tuple(torch.randn(size, generator=self._generator) for size in (q, kv, kv))  # type: ignore[return-value]


def _nothing(q: Tensor, keys: Tensor, values: Tensor, counts: Int[Tensor, "B G"] | None) -> Tensor:
    return torch.zeros(*q.shape[:-1], values.shape[-1])
