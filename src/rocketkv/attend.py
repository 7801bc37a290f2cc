"""The method on one screen: how a prompt is read, and how each later token is.

The model's attention hands over rotated queries, keys and values; the layer's cache holds the state; ops do the
arithmetic. Nothing goes back up.
"""

from __future__ import annotations

from collections.abc import Callable

from rocketkv.cache.layer import LayerCache
from rocketkv.cache.store import tensor_bytes, view_rows
from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Step
from rocketkv.types import Bool, Float, Int, Tensor

DenseAttention = Callable[[Tensor, Tensor, Int[Tensor, "B G"] | None], Tensor]
"""(keys, values, counts) -> output [B, G, R, q, Dv]. With counts None: the model's own attention and mask over its own
columns. With counts [B, G]: causal attention over right-aligned columns of which each segment holds that many."""


def prefill_attend(
    q: Float[Tensor, "B G R q D"],
    keys: Float[Tensor, "B G q D"],
    values: Float[Tensor, "B G q Dv"],
    cache: LayerCache,
    *,
    valid: Bool[Tensor, "B q"] | None,
    scaling: float,
    dense: DenseAttention,
) -> Float[Tensor, "B G R q Dv"]:
    """Read prompt tokens: dense attention over what is held and themselves, then eviction, once, at the prompt's end."""
    all_keys, all_values, counts = cache.extend(keys, values, valid)
    out = dense(all_keys, all_values, counts)
    cache.observe(q, valid)
    cache.end_chunk(counts, keys.shape[2], scaling)
    return out


def decode_attend(
    q: Float[Tensor, "B G R 1 D"],
    keys: Float[Tensor, "B G 1 D"],
    values: Float[Tensor, "B G 1 Dv"],
    cache: LayerCache,
    *,
    scaling: float,
    dense: DenseAttention,
) -> Float[Tensor, "B G R 1 Dv"]:
    """Read one generated token: take it in, choose which kept tokens are worth reading, attend to those exactly."""
    cache.append(keys, values)
    if cache.kv is None:
        cache.count_step(tensor_bytes(cache.keys, cache.values))
        return dense(cache.keys, cache.values, None)
    out = q.new_empty(*q.shape[:-1], values.shape[-1])
    elements = 0
    for group in cache.groups:
        rows = slice(None) if group.rows is None else group.rows
        mine, q_mine = view_rows(cache.kv, group.rows), q[rows, :, :, 0]
        step = Step(mine, group.bounds, mine.lengths, group.budget_tokens, scaling, cache.backend)
        chosen = group.selector.select(q_mine, step)
        out[rows, :, :, 0] = op("attend", "attend", cache.backend)(
            q_mine, mine, chosen.tokens, chosen.counts, scaling=scaling
        )
        elements += chosen.estimate_elements + int(chosen.counts.sum()) * (q.shape[-1] + values.shape[-1])
    cache.count_step(elements * cache.kv.keys.element_size())
    return out
