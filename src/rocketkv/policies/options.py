"""The options of a policy as a user types them: `split=0.5`, `window_tokens=16`.

An option is a field of the policy, of its evictor or of its selector; the names are the fields' own, and no
two of these share one. The budget is not among them.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

from rocketkv.policies.base import Policy


def options_of(policy: Policy) -> dict[str, Any]:
    """The options that `policy` knows, with their present values."""
    return {name: getattr(owner, name) for name, (owner, _, _) in _settable(policy).items()}


def with_options(policy: Policy, settings: Mapping[str, str]) -> Policy:
    """`policy` with options read from text.

    Raises:
        ValueError: for an unknown option (with the near ones), or a value that is unreadable or out of range.
    """
    known = _settable(policy)
    for name, text in settings.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)
            hint = f"did you mean {' or '.join(near)}?" if near else "it has none"
            raise ValueError(f"policy {policy.name!r} has no option {name!r}: {hint}")
        _, slot, hint_type = known[name]
        value = _parse(name, text, hint_type)
        if slot is None:
            policy = dataclasses.replace(policy, **{name: value})
        else:
            part = dataclasses.replace(getattr(policy, slot), **{name: value})
            policy = dataclasses.replace(policy, **{slot: part})
    return policy


def _settable(policy: Policy) -> dict[str, tuple[Any, str | None, Any]]:
    """Option name -> (the value that owns it, its slot in the policy or None, its type)."""
    found: dict[str, tuple[Any, str | None, Any]] = {}
    if policy.whole:
        return found
    for field in dataclasses.fields(policy):
        value = getattr(policy, field.name)
        if dataclasses.is_dataclass(value):
            hints = typing.get_type_hints(type(value))
            for inner in dataclasses.fields(value):
                found[inner.name] = (value, field.name, hints[inner.name])
        elif field.init and field.name != "budget_tokens":
            found[field.name] = (policy, None, typing.get_type_hints(type(policy))[field.name])
    return found


def _parse(name: str, text: str, hint: Any) -> Any:
    """The value that `text` stands for in a field of type `hint`."""
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if text not in choices:
            raise ValueError(f"{name}={text!r} is unknown: choose {' or '.join(choices)}")
        return text
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in kinds and text.lower() in ("none", "adaptive"):
        return None
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name}={text!r} is neither true nor false")
        return text.lower() == "true"
    for kind, words in ((int, "a whole number"), (float, "a number")):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                raise ValueError(f"{name}={text!r} is not {words}") from None
    return text
