"""Attach a model: let its attention find compressed caches, until it is detached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rocketkv.hf.attention import BASES, NAME
from rocketkv.hf.errors import UnsupportedModelError

_COUNTS: dict[int, int] = {}


def decoder_config(model: Any) -> Any:
    """The config that the model's decoder layers look at."""
    return model.config.get_text_config(decoder=True)


def check_model(model: Any) -> None:
    """Raise UnsupportedModelError, by name, for a model whose attention cannot be served."""
    config, kind = decoder_config(model), type(model).__name__
    if not model._can_set_attn_implementation():
        raise UnsupportedModelError(
            f"{kind} does not use transformers' attention interface: its attention cannot be replaced"
        )
    if getattr(config, "kv_lora_rank", None):
        raise UnsupportedModelError(
            f"{kind} caches latents (MLA), not keys and values per head: it cannot be compressed here"
        )
    if getattr(config, "attn_logit_softcapping", None):
        raise UnsupportedModelError(
            f"{kind} caps its attention logits (softcap), which compressed caches do not compute"
        )
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{kind} is an encoder-decoder: only decoder-only models have the cache compressed here"
        )


def is_attached(config: Any) -> bool:
    """Whether models of this config object call our attention function."""
    return config._attn_implementation == NAME


@contextmanager
def attach(model: Any) -> Iterator[Any]:
    """While the context is open, `model` accepts compressed caches; every other cache works as before.

    Nothing of the model is patched: the name of its attention changes in its config, and is restored on exit. Models
    that share a config object share the attachment, and the last exit restores it.

    Raises:
        UnsupportedModelError: naming the model and the reason (MLA, logit softcap, no attention interface).
    """
    check_model(model)
    config = decoder_config(model)
    key = id(config)
    if _COUNTS.get(key, 0) == 0:
        base = config._attn_implementation or "sdpa"
        if base == "flex_attention" or base.startswith("paged"):
            raise UnsupportedModelError(
                f"attention {base!r} cannot stay beneath a compressed cache: load the model with sdpa"
            )
        BASES[key] = base
        config._attn_implementation = NAME
    _COUNTS[key] = _COUNTS.get(key, 0) + 1
    try:
        yield model
    finally:
        _COUNTS[key] -= 1
        if _COUNTS[key] == 0:
            config._attn_implementation = BASES.pop(key)
            del _COUNTS[key]
