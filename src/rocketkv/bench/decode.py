"""A whole model, one decode step: transformers' cache, our dense kernel and policies, over randomly filled caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rocketkv.bench.filled import Shape, fill, random_columns
from rocketkv.bench.timing import Row
from rocketkv.cache.store import tensor_bytes
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache, CompressedLayer
from rocketkv.hf.plain import plain_cache
from rocketkv.hf.shape import shape_of
from rocketkv.policies.base import Policy
from rocketkv.policies.registry import make_policy

DENSE = "keep-all+read-all"
"""Everything kept in our own store and read by our own kernel."""
DENSE_BUDGET = 16


@dataclass(frozen=True)
class Variant:
    """A model in one dtype, its weights held in one of the ways of `hf.weights`."""

    model: Any
    name: str
    weights: str

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and cache."""
        dtype: torch.dtype = self.model.dtype
        return dtype


@dataclass(frozen=True)
class DecodeCase:
    """Steps at one context length. `policies` with their budgets set; a policy whose plan is dense runs densely."""

    context_tokens: int
    policies: Sequence[Policy]
    seed: int
    backend: str = "auto"


def rows_of(variant: Variant, case: DecodeCase) -> list[Row]:
    """The rows of one variant. Its cache of transformers' is the baseline of its dtype if its weights are floats."""
    model = variant.model
    layers = shape_of(model.config).layers
    token = torch.tensor([[int(torch.randint(vocabulary_size(model), (1,)))]])
    group = f"{variant.name}, {str(variant.dtype)[6:]}, {case.context_tokens:,} tokens in the cache"
    rows = []

    def add(name: str, policy: Policy | None, step: Callable[[], Any], cache_bytes: int) -> None:
        budget = case.context_tokens if policy is None or policy.whole else policy.budget_tokens
        named = weight_bytes(model) + pair_bytes(model) * min(budget, case.context_tokens)
        settings = {
            "model": variant.name, "dtype": str(variant.dtype)[6:], "weights": variant.weights, "layers": layers,
            "context_tokens": case.context_tokens, "cache_bytes": cache_bytes, "backend": case.backend,
            "policy": None if policy is None else policy.describe(), "shown": f"cache {cache_bytes / 1e6:,.0f} MB",
        }  # fmt: skip
        baseline = policy is None and variant.weights == "float"
        rows.append(Row(f"{variant.weights} weights, {name}", group, [step], named, baseline, settings))

    cache, kwargs = filled_plain(model, case.context_tokens, case.seed)
    add("Full-KV, transformers' cache and SDPA", None, partial(_step, model, token, kwargs), plain_bytes(cache))
    for policy in [make_policy(DENSE, DENSE_BUDGET), *case.policies]:
        compressed = filled_compressed(model, policy, case.context_tokens, case.seed, case.backend)
        name = "Full-KV, our dense kernel" if policy.name == DENSE else f"{policy.name} {policy.budget_tokens}"
        step = partial(_attached_step, model, token, compressed)
        add(name, policy, step, compressed.report().cache_bytes)
    return rows


@torch.inference_mode()
def _step(model: Any, token: torch.Tensor, kwargs: dict[str, Any]) -> None:
    model(token, use_cache=True, logits_to_keep=1, **kwargs)


def _attached_step(model: Any, token: torch.Tensor, cache: CompressedCache) -> None:
    with attach(model):
        _step(model, token, cache.kwargs)


@torch.no_grad()
def filled_plain(model: Any, tokens: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """transformers' own cache with `tokens` random keys and values in every layer, and the way to hand it over."""
    cache, kwargs = plain_cache(model)
    generator = torch.Generator().manual_seed(seed)
    for layer in range(shape_of(model.config).layers):
        cache.update(*random_columns(head_shape(model), tokens, model.dtype, generator), layer)
    return cache, kwargs


@torch.no_grad()
def filled_compressed(model: Any, policy: Policy, tokens: int, seed: int, backend: str = "auto") -> CompressedCache:
    """A compressed cache that took `tokens` random keys through the policy's own eviction, layer by layer."""
    cache = CompressedCache(model, policy, backend=backend)
    generator = torch.Generator().manual_seed(seed)
    for layer in cache.layers:
        if isinstance(layer, CompressedLayer):
            fill(layer.state, head_shape(model), tokens, model.dtype, generator)
            layer.is_initialized = True
        else:
            layer.update(*random_columns(head_shape(model), tokens, model.dtype, generator))
    return cache


def head_shape(model: Any) -> Shape:
    """The heads of a model's attention."""
    shape = shape_of(model.config)
    return Shape(shape.kv_heads, shape.group_size, shape.head_dim)


def pair_bytes(model: Any) -> int:
    """Bytes of one token's keys and values in all layers."""
    return head_shape(model).pair_bytes(model.dtype) * shape_of(model.config).layers


def weight_bytes(model: Any) -> int:
    """Bytes of the weights that one step reads: all but an embedding of its own, of which it reads one row."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    unread = 0 if embedding is head else embedding.numel() * embedding.element_size()
    return sum(weight.numel() * weight.element_size() for weight in model.parameters()) - unread


def plain_bytes(cache: Any) -> int:
    """Bytes of the keys and values in a cache of transformers' own."""
    return tensor_bytes(*(tensor for layer in cache.layers for tensor in (layer.keys, layer.values)))


def vocabulary_size(model: Any) -> int:
    """How many tokens the model knows."""
    return int(model.get_input_embeddings().weight.shape[0])
