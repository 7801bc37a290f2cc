"""The differences between the transformers versions that are supported (5.16 to 5.24), in one place.

5.24 renamed the cache argument of forwards and of generate from `past_key_values` to `cache`, and lets a cache reach
the attention function through the keyword arguments that both receive. Before that, a mark on the key tensor does it.
"""

from __future__ import annotations

import inspect
from typing import Any

import transformers
from torch import Tensor
from transformers import masking_utils

CACHE_ARGUMENT = (
    "cache" if "cache" in inspect.signature(masking_utils.create_causal_mask).parameters else "past_key_values"
)
"""What forwards and generate call the cache."""

CHUNKS_LATER_TURNS = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 23)
"""Whether generate's chunked prefill skips what the cache has seen; before, it feeds the whole conversation again."""

_KEY = "rocketkv_layer"


def hand_over(layer: object, keys: Tensor, kwargs: dict[str, Any] | None) -> None:
    """Let the attention function that follows find `layer`."""
    if kwargs is not None:
        kwargs[_KEY] = layer
    else:
        setattr(keys, _KEY, layer)


def handed_over(keys: Tensor, kwargs: dict[str, Any]) -> Any | None:
    """The layer that was handed over to this call, if any. It is taken out of `kwargs`."""
    if _KEY in kwargs:
        return kwargs.pop(_KEY)
    layer = getattr(keys, _KEY, None)
    if layer is not None:
        delattr(keys, _KEY)
    return layer
