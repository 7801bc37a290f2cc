"""A policy as plain values and tensors, and back: what a saved context says about how it was made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rocketkv.policies.base import Policy
from rocketkv.policies.head_pattern import HeadPattern
from rocketkv.policies.registry import EVICTORS, SELECTORS, WHOLE_POLICIES
from rocketkv.policies.two_stage import Composed

_CLASSES: list[Any] = [*WHOLE_POLICIES.values(), *EVICTORS.values(), *SELECTORS.values(), Composed, HeadPattern]
KINDS: dict[str, Any] = {part.__name__: part for part in _CLASSES}
"""Every class that may be saved, by its name; those in the registry are here by themselves."""


def to_spec(policy: Policy, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The policy as values for JSON. Tensors among its fields go into `tensors`, once for each content's name.

    Raises ValueError, by name, for a policy or slot that the registry does not know.
    """
    return _encode(policy, tensors)


def from_spec(spec: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Policy:
    """The policy that `to_spec` wrote down. Raises ValueError for what this version does not know."""
    policy = _decode(spec, tensors)
    if not isinstance(policy, Policy):
        raise ValueError(f"{spec} is not a policy")
    return policy


def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not dataclasses.is_dataclass(value):
        return list(map(list, value)) if isinstance(value, tuple) else value
    kind = type(value).__name__
    if KINDS.get(kind) is not type(value):
        raise ValueError(f"{kind} is not in the registry of policies, so that it could not be read back: register it")
    spec: dict[str, Any] = {"kind": kind}
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if isinstance(part, Tensor):
            key = f"{kind}.{field.name}.{getattr(value, 'name', '')}"
            tensors[key] = part
            spec[field.name] = {"tensor": key}
        else:
            spec[field.name] = _encode(part, tensors)
    return spec


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return tuple(tuple(row) for row in value)
    if not isinstance(value, Mapping):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    kind = KINDS.get(value["kind"])
    if kind is None:
        raise ValueError(f"it names {value['kind']!r}, which this version of rocketkv does not have")
    return kind(**{name: _decode(part, tensors) for name, part in value.items() if name != "kind"})
