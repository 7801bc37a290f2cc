"""transformers' own cache, for measuring beside ours."""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import DynamicCache

from rocketkv.hf.attach import decoder_config
from rocketkv.hf.compat import CACHE_ARGUMENT


def plain_cache(model: Any) -> tuple[Any, dict[str, Any]]:
    """An empty cache of transformers' own, and the keyword arguments that hand it to the model's forward."""
    cache = DynamicCache(config=decoder_config(model))
    return cache, {CACHE_ARGUMENT: cache}
