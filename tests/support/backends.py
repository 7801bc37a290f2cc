"""Tests of an op that run once for every backend of this machine."""

from collections.abc import Callable
from typing import Any

from rocketkv.ops.dispatch import op

BACKENDS = ["reference", "cpu"]
current = ["reference"]


def on_backend(folder: str, name: str) -> Callable[..., Any]:
    """The op, on the backend that the running test was given."""
    return lambda *args, **named: op(folder, name, current[0])(*args, **named)
