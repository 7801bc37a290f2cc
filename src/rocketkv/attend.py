"""The method on one screen: how a prompt is read, and how each later token is.

The model's attention hands over rotated queries, keys and values; the layer's cache holds the state; ops do the
arithmetic. Nothing goes back up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocketkv.cache.groups import Group
from rocketkv.cache.layer import LayerCache
from rocketkv.cache.store import tensor_bytes
from rocketkv.ops.dispatch import op
from rocketkv.ops.ragged import per_query_head
from rocketkv.policies.base import Selection, Step
from rocketkv.types import Bool, Float, Int, Tensor

DenseAttention = Callable[[Tensor, Tensor, Tensor, Int[Tensor, "B G"] | None], Tensor]
"""(q, keys, values, counts) -> output [B, G, R, q, Dv]. With counts None: the model's own attention and mask over its
own columns. With counts [B, G]: causal attention over right-aligned columns of which each segment holds that many."""


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
    """Read prompt tokens: dense attention over what is held and themselves, then, at the prompt's end, eviction."""
    all_keys, all_values, counts = cache.extend(keys, values, valid)
    if cache.ragged is not None:
        q = cache.ragged.rotated(q)
    out = dense(q, all_keys, all_values, counts)
    cache.observe(q, valid)
    cache.end_chunk(keys.shape[2], scaling)
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
    whole = cache.whole_step(q, keys, values, scaling)  # all of the below in one call, where a backend has one
    if whole is not None:
        return whole
    cache.append(keys, values)
    if cache.ragged is None:
        all_keys, all_values = cache.columns_held()
        cache.count_step(tensor_bytes(all_keys, all_values))
        if cache.observer is not None:
            cache.observer(cache, q[:, :, :, 0], scaling, [])
        return dense(q, all_keys, all_values, None)
    q = cache.ragged.rotated(q.detach())[:, :, :, 0]  # [B, G, R, D]
    out = q.new_empty(*q.shape[:-1], values.shape[-1])
    elements, reads = 0, []
    for group in cache.ragged.groups:
        step, mine = cache.ragged.step(group, scaling), group.pick(q)
        place = slice(None) if group.rows is None else group.rows
        options = group.selector.hybrid_options
        if options is not None and cache.observer is None:
            out[place], seen = read_hybrid(mine, step, options)
        elif group.selector.reads_all and step.candidates is None and cache.observer is None:
            out[place] = op("dense_attend", "dense_attend", step.backend)(mine, step.kv, scaling=scaling)
            seen = int(step.lengths.sum()) * (q.shape[-1] + values.shape[-1])
        else:
            chosen = group.selector.select(mine, step)
            out[place] = read(group, mine, step, chosen)
            reads.append((group, step, chosen))
            seen = chosen.estimate_elements + int(chosen.counts.sum()) * (q.shape[-1] + values.shape[-1])
        elements += seen
    cache.count_step(elements * keys.element_size())
    if cache.observer is not None:
        cache.observer(cache, q, scaling, reads)
    return out[:, :, :, None]


def read_hybrid(
    q: Float[Tensor, "B G R D"], step: Step, options: dict[str, Any]
) -> tuple[Float[Tensor, "B G R Dv"], int]:
    """The selector's choice and the attention over it in one op, and the stored numbers that were read."""
    inputs = (q, step.kv, step.candidates, step.bounds, step.lengths, step.budget_tokens)
    hybrid = op("hybrid_attend", "hybrid_attend", step.backend)
    return hybrid(*inputs, scaling=step.scaling, **options)


def read(group: Group, q: Float[Tensor, "B G R D"], step: Step, chosen: Selection) -> Float[Tensor, "B G R Dv"]:
    """Exact attention over the chosen tokens, by group or by query head, mean-value correction included."""
    attend, slots = op("attend", "attend", step.backend), step.slots(chosen.tokens)
    if slots.shape[1] == q.shape[1]:
        out = attend(q, step.kv, slots, chosen.counts, scaling=step.scaling)
    else:
        alone = q.flatten(1, 2)[:, :, None]  # [B, G R, 1, D]
        kv = per_query_head(step.kv, q.shape[2])
        out = attend(alone, kv, slots, chosen.counts, scaling=step.scaling).view(*q.shape[:-1], -1)
    if chosen.mass is None or group.value_sums is None:
        return out
    mean = group.value_sums / step.kv.lengths.clamp(min=1)[..., None]  # [B, G, Dv]
    return (chosen.mass[..., None] * out + (1 - chosen.mass)[..., None] * mean[:, :, None]).to(out.dtype)
