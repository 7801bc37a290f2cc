"""RocketKV: training-free compression of a language model's KV cache.

Nothing heavy is imported until it is used: the names below are loaded on first access.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CompressedCache": "rocketkv.hf.cache",
    "FullKV": "rocketkv.policies.full",
    "HybridTopK": "rocketkv.policies.hsa",
    "Plan": "rocketkv.budget",
    "RocketKV": "rocketkv.policies.rocketkv",
    "SnapKV": "rocketkv.policies.snapkv",
    "attach": "rocketkv.hf.attach",
    "generate": "rocketkv.hf.generate",
    "load_context": "rocketkv.contexts",
    "load_model": "rocketkv.hf.models",
    "make_plan": "rocketkv.budget",
    "make_policy": "rocketkv.policies.registry",
    "save_context": "rocketkv.contexts",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rocketkv' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
