"""One layer's state as tensors and plain values, and back: exactly what decoding needs to go on bit for bit.

Room to grow is not written, its sizes are: they decide when a store grows and pages are laid out again. Page bounds are
not written either: they follow from the keys without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from rocketkv.budget import Plan
from rocketkv.cache.counters import Counters
from rocketkv.cache.groups import Group
from rocketkv.cache.layer import LayerCache
from rocketkv.cache.ragged import Progress, RaggedLayer
from rocketkv.cache.whole import WholeLayer
from rocketkv.ops.ragged import segment_index, segment_starts
from rocketkv.policies.base import Policy
from rocketkv.types import Candidates, RaggedKV, Tensor

FLAT = ("keys", "values", "positions", "slots")


def layer_state(cache: LayerCache) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the rest as values for JSON.

    Raises ValueError for a layer that has read nothing or is inside a prompt.
    """
    if cache.row_tokens is None:
        raise ValueError("the cache has read nothing yet: there is nothing to save")
    if cache.announced_columns:
        raise ValueError(f"{cache.announced_columns} columns of the announced prompt are still to come: save after it")
    tensors = {"row_tokens": cache.row_tokens}
    facts: dict[str, Any] = {
        "columns": cache.columns,
        "plans": [asdict(plan) for plan in cache.plans],
        "counters": asdict(cache.counters),
    }
    if cache.held is not None:
        tensors |= _given(
            {"held.keys": cache.held.keys, "held.values": cache.held.values, "held.valid": cache.held.valid}
        )
    if cache.ragged is not None:
        ragged = cache.ragged
        facts["progress"] = asdict(ragged.progress())
        tensors |= _table("kv", ragged.kv) | _given({"basis": ragged.basis})
        if ragged.candidates is not None:
            tensors |= _table("candidates", ragged.candidates)
        for group in ragged.groups:
            tensors |= _given({_sums_name(group, len(ragged.rules)): group.value_sums})
    return tensors, facts


def restore_layer(
    cache: LayerCache, policies: tuple[Policy, ...], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Give a fresh layer the state that `layer_state` wrote down, each row under its policy."""
    held, ragged = None, None
    if "held.keys" in tensors:
        held = WholeLayer(tensors["held.keys"], tensors["held.values"], tensors.get("held.valid"))
    cache.resume(
        policies,
        row_tokens=tensors["row_tokens"],
        columns=facts["columns"],
        plans=[Plan(**(plan | {"floors": tuple(plan["floors"])})) for plan in facts["plans"]],
        counters=Counters(**{part.name: facts["counters"][part.name] for part in fields(Counters)}),
        held=held,
    )
    if "kv.keys" in tensors:
        candidates = None
        if "candidates.slots" in tensors:
            candidates = Candidates(**_opened("candidates", tensors))
        ragged = RaggedLayer(
            RaggedKV(**_opened("kv", tensors)),
            cache.row_rules(),
            candidates=candidates,
            basis=tensors.get("basis"),
            layer=cache.layer,
            backend=cache.backend,
            progress=Progress(**facts["progress"]),
        )
        for number, group in enumerate(ragged.groups):
            # A sum that grew token by token is rounded otherwise than one made at once: the grown one goes on.
            grown = tensors.get(_sums_name(group, len(policies)))
            if grown is not None:
                ragged.groups[number] = replace(group, value_sums=grown)
        cache.ragged = ragged


def _given(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _sums_name(group: Group, rows: int) -> str:
    mine = range(rows) if group.rows is None else group.rows.tolist()
    return "value_sums." + "-".join(map(str, mine))


def _table(name: str, table: RaggedKV | Candidates) -> dict[str, Tensor]:
    """The used part of a store's flat tensors, and its sizes."""
    used = segment_index(table.starts, table.lengths)
    flat = {part: getattr(table, part, None) for part in FLAT}
    tensors = {f"{name}.{part}": memory[used] for part, memory in flat.items() if memory is not None}
    return tensors | {f"{name}.lengths": table.lengths, f"{name}.capacities": table.capacities}


def _opened(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The fields of a store with its room to grow again."""
    lengths, capacities = tensors[f"{name}.lengths"], tensors[f"{name}.capacities"]
    starts = segment_starts(capacities)
    fields = {"starts": starts, "lengths": lengths, "capacities": capacities}
    target, room = segment_index(starts, lengths), int(capacities.sum())
    for part in FLAT:
        packed = tensors.get(f"{name}.{part}")
        if packed is not None:
            fields[part] = packed.new_empty(room, *packed.shape[1:])
            fields[part][target] = packed
    return fields
