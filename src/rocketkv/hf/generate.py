"""The simplest way in: transformers' generate with a compressed cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.compat import CHUNKS_LATER_TURNS
from rocketkv.policies.base import Policy

ASSISTED = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")


def generate(
    model: Any,
    policy: Policy | Sequence[Policy],
    *,
    cache: CompressedCache | None = None,
    planned_new_tokens: int = 0,
    backend: str = "auto",
    **kwargs: Any,
) -> Any:
    """`model.generate(**kwargs)` with its cache compressed by `policy`; returns what generate returns.

    Args:
        policy: one for all rows, or one for each row of the batch.
        cache: a cache to continue, from an earlier turn, or one to look at afterwards; a new one if not given. On later
            turns pass the whole conversation as `input_ids`, or the new tokens with a mask over all of it.
        planned_new_tokens: N of the plan, 0 unless a generation length is planned. It is not the stop limit.
        kwargs: as for transformers' generate. A chunked prefill (`prefill_chunk_size`) is announced to the cache.

    Raises:
        ValueError: for assisted decoding, whose tokens cannot be taken back, and for a cache of another policy.
    """
    config = kwargs.get("generation_config") or model.generation_config
    for name in ASSISTED:
        if kwargs.get(name) is not None or getattr(config, name, None) is not None:
            raise ValueError(
                f"{name}: assisted decoding takes tokens back, and an evicted token does not come back: leave it out"
            )
    if cache is None:
        cache = CompressedCache(model, policy, planned_new_tokens=planned_new_tokens, backend=backend)
    elif cache.states[0].given_policies != ((policy,) if isinstance(policy, Policy) else tuple(policy)):
        raise ValueError(
            "the cache was made for another policy than the one given: pass the same, or leave the cache out"
        )
    if kwargs.get("prefill_chunk_size") or getattr(config, "prefill_chunk_size", None):
        if cache.get_seq_length() > 0 and not CHUNKS_LATER_TURNS:
            raise ValueError(
                f"prefill_chunk_size on a later turn needs transformers 5.23; {transformers.__version__} "
                "would read the whole conversation again: leave it out on this turn"
            )
        cache.begin_prefill(_new_columns(kwargs, cache.get_seq_length()))
    with attach(model):
        return model.generate(**kwargs, **cache.kwargs)


def _new_columns(kwargs: dict[str, Any], seen: int) -> int:
    """Prompt columns that generate will feed: all that are not in the cache yet."""
    ids: torch.Tensor | None = kwargs.get("input_ids", kwargs.get("inputs"))
    if ids is None:
        ids = kwargs["inputs_embeds"]
    mask = kwargs.get("attention_mask")
    columns = ids.shape[1] if mask is None else mask.shape[1]
    return columns - seen
