"""A layer that has read a prompt, without a model."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from rocketkv.attend import prefill_attend
from rocketkv.cache.layer import LayerCache
from rocketkv.policies.base import Policy


def prompt_of(
    policies: list[Policy], q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, backend: str = "auto"
) -> LayerCache:
    """q [B, G, R, T, D], keys and values [B, G, T, D]: a layer that holds them as its policies leave them."""
    layer = LayerCache(tuple(policies), backend=backend)

    def dense(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
        flat = q.flatten(1, 2)
        out = scaled_dot_product_attention(flat, keys, values, is_causal=True, enable_gqa=True)
        return out.view(q.shape)

    prefill_attend(q, keys, values, layer, valid=None, scaling=0.3, dense=dense)
    return layer
