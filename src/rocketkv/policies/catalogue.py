"""Every method with one line, its paper and its options, read off the code: docstrings, and fields with defaults."""

from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import dataclass
from typing import Any

from rocketkv.policies.options import default_of, kind_of
from rocketkv.policies.registry import class_of, options_by_owner, policy_names

CITATION = re.compile(r"\(([^()]*arXiv:\d{4}\.\d{5})\)")


@dataclass(frozen=True)
class Option:
    """A setting of a method, in words; `default` is "required" where it must be given."""

    name: str
    kind: str
    default: str


@dataclass(frozen=True)
class Method:
    """A name of the registry, what it does in one line, and where it comes from."""

    name: str
    line: str
    paper: str
    options: tuple[Option, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


def methods() -> list[Method]:
    """Every method that stands alone, in the registry's order."""
    return [method(name) for name in policy_names()]


def method(name: str) -> Method:
    """One method that stands alone, by its name in the registry.

    Raises ValueError where its class has no docstring, or the docstring of its module cites no paper in the form
    (Author, venue, arXiv:0000.00000).
    """
    made = class_of(name)
    line = (made.__doc__ or "").strip().split("\n")[0].rstrip(".")
    cited = CITATION.search(sys.modules[made.__module__].__doc__ or "")
    if not line or cited is None:
        raise ValueError(f"{made.__name__} lacks a line that says what it does, or its module the paper")
    options = [
        Option(field, kind_of(owner, field), str(settings.get(field, default_of(owner, field))))
        for owner, fields, settings in options_by_owner(name)
        for field in fields
    ]
    return Method(name, line, cited[1], tuple(options))
