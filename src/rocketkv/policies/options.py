"""Options of policies and of their slots, read off their dataclasses: names, kinds, and text turned into values."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any


def options_of(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a policy, evictor or selector class, by name."""
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


def convert(cls: Any, name: str, value: Any) -> Any:
    """`value` as the field `name` of `cls` wants it; text is read, other values are checked by the class itself.

    Raises:
        ValueError: naming the option, what was given and what is wanted.
    """
    if not isinstance(value, str):
        return value
    loader = getattr(cls, f"load_{name}", None)
    if loader is not None:
        return loader(value)
    kind = typing.get_type_hints(cls)[name]
    for wanted in _alternatives(kind):
        try:
            return _read(wanted, value)
        except ValueError:
            continue
    raise ValueError(f"option {name}={value!r} is not {_describe(kind)}: give one")


def required_of(cls: Any) -> list[str]:
    """The fields that have no default."""
    none = dataclasses.MISSING
    return [name for name, field in options_of(cls).items() if field.default is none and field.default_factory is none]


def kind_of(cls: Any, name: str) -> str:
    """What kind of value the field `name` takes, in words."""
    return "a file" if hasattr(cls, f"load_{name}") else _describe(typing.get_type_hints(cls)[name])


def default_of(cls: Any, name: str) -> str:
    """What the field `name` is if it is not given, in words."""
    default = options_of(cls)[name].default
    if default is dataclasses.MISSING:
        return "required"
    return "none" if default is None else str(default).lower()


def _describe(kind: Any) -> str:
    return " or ".join(_word(wanted) for wanted in _alternatives(kind))


def _word(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a value of its class")


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _read(kind: Any, text: str) -> Any:
    if kind is type(None):
        if text.lower() in ("none", "adaptive"):
            return None
    elif kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    elif typing.get_origin(kind) is typing.Literal:
        if text in typing.get_args(kind):
            return text
    elif kind in (int, float):
        return kind(text)
    raise ValueError(text)
