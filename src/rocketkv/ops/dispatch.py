"""Which implementation of an op runs. Nothing falls back in silence: a backend that cannot run says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

BACKENDS = ("auto", "reference")


class BackendError(ValueError):
    """A backend was asked for that does not exist or cannot run here."""


def backend_names(backend: str) -> None:
    """Raise BackendError unless `backend` is a known name."""
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}: choose from {', '.join(BACKENDS)}")


@cache
def op(folder: str, name: str, backend: str = "auto") -> Callable[..., Any]:
    """The function `name` of `rocketkv.ops.<folder>` for a backend.

    "auto" is the reference until a faster backend stands beside it.

    Raises:
        BackendError: naming the op, the backend and the way out.
    """
    backend_names(backend)
    chosen = "reference" if backend == "auto" else backend
    module = f"rocketkv.ops.{folder}.{chosen}"
    if find_spec(module) is None:
        raise BackendError(f'{folder}/{chosen} is not implemented; use backend="reference"')
    return getattr(import_module(module), name)
