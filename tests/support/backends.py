"""Tests of an op that run once for every backend of this machine."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from rocketkv.ops.dispatch import op

BACKENDS = ["reference", "cpu"]
if find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1":
    BACKENDS.append("triton")
current = ["reference"]


def on_backend(folder: str, name: str) -> Callable[..., Any]:
    """The op, on the backend that the running test was given."""
    return lambda *args, **named: op(folder, name, current[0])(*args, **named)
