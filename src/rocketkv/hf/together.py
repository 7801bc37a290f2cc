"""One prompt, many policies: the prompt is read once, then every policy decodes as a row of one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache, CompressedLayer
from rocketkv.policies.base import Policy


@dataclass
class Together:
    """`new_tokens[i]` is what policy i generated (a stop token included); `cache` is what was left at the end."""

    new_tokens: list[list[int]]
    cache: CompressedCache


@torch.inference_mode()
def answer_together(
    model: Any,
    policies: Sequence[Policy],
    input_ids: torch.Tensor,
    *,
    max_new_tokens: int,
    stop_ids: Collection[int] | None = None,
    planned_new_tokens: int = 0,
    backend: str = "auto",
    on_prompt_layer: Callable[[int, int], None] | None = None,
) -> Together:
    """Greedy answers of every policy to one prompt, the weights being read once per step for all of them.

    Args:
        input_ids: [1, tokens], one prompt without padding.
        max_new_tokens: at least 1.
        stop_ids: tokens that end a row; the model's own end tokens if None. A row that ended costs nothing more.

    Every row equals the policy alone up to the rounding of batched products.
    """
    if input_ids.shape[0] != 1:
        raise ValueError(f"one prompt is read for all policies: got a batch of {input_ids.shape[0]}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} is below 1: give the number of tokens to generate")
    stops = set(_end_ids(model) if stop_ids is None else stop_ids)
    cache = CompressedCache(model, policies, planned_new_tokens=planned_new_tokens, share_prompt=True, backend=backend)
    cache.on_prompt_layer = on_prompt_layer
    with attach(model):
        logits = model(input_ids, logits_to_keep=1, use_cache=True, **cache.kwargs).logits
        for layer in cache.layers:
            if not isinstance(layer, CompressedLayer):
                layer.batch_repeat_interleave(len(policies))
        first = int(logits[0, -1].argmax())
        answers = [[first] for _ in policies]
        rows = [] if first in stops else list(range(len(policies)))
        for _ in range(max_new_tokens - 1):
            if not rows:
                break
            newest = torch.tensor([[answers[row][-1]] for row in rows], device=input_ids.device)
            logits = model(newest, use_cache=True, **cache.kwargs).logits
            for row, token in zip(rows, logits[:, -1].argmax(-1).tolist(), strict=True):
                answers[row].append(token)
            going = [place for place, row in enumerate(rows) if answers[row][-1] not in stops]
            if len(going) < len(rows):
                cache.batch_select_indices(torch.tensor(going, dtype=torch.long))
                rows = [rows[place] for place in going]
    return Together(answers, cache)


def _end_ids(model: Any) -> list[int]:
    end = model.generation_config.eos_token_id
    if end is None:
        return []
    return [end] if isinstance(end, int) else list(end)
