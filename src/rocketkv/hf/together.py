"""One prompt, many policies: the prompt is read once, then every policy decodes as a row of one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
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
    stops = set(end_ids(model) if stop_ids is None else stop_ids)
    cache = CompressedCache(model, policies, planned_new_tokens=planned_new_tokens, share_prompt=True, backend=backend)
    cache.on_prompt_layer = on_prompt_layer
    with attach(model):
        logits = model(input_ids, logits_to_keep=1, use_cache=True, **cache.kwargs).logits
        cache.give_rows()
        answers = decode_rows(model, cache, logits[:, -1], max_new_tokens=max_new_tokens, stop_ids=stops)
    return Together(answers, cache)


@torch.inference_mode()
def decode_rows(
    model: Any,
    cache: CompressedCache,
    logits: torch.Tensor,
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    ended: Callable[[list[int]], bool] | None = None,
) -> list[list[int]]:
    """Greedy answers of every row of a cache whose prompt has been read; the model must be attached.

    Args:
        logits: [rows, vocabulary] of each row's last prompt token, or [1, vocabulary] for all of them.
        stop_ids: tokens that end a row (and are part of its answer).
        ended: asked with a row's tokens so far whether they are enough. A row that ended leaves the cache.
    """

    def over(answer: list[int]) -> bool:
        return answer[-1] in stop_ids or (ended is not None and ended(answer))

    policies = len(cache.states[0].policies)
    answers = [[token] for token in logits.argmax(-1).expand(policies).tolist()]
    rows = _leave(cache, list(range(policies)), answers, over)
    for _ in range(max_new_tokens - 1):
        if not rows:
            break
        newest = torch.tensor([[answers[row][-1]] for row in rows], device=logits.device)
        step = model(newest, use_cache=True, **cache.kwargs).logits
        for row, token in zip(rows, step[:, -1].argmax(-1).tolist(), strict=True):
            answers[row].append(token)
        rows = _leave(cache, rows, answers, over)
    return answers


def _leave(
    cache: CompressedCache, rows: list[int], answers: list[list[int]], over: Callable[[list[int]], bool]
) -> list[int]:
    """The rows that go on; the others leave the cache, except the last ones, which nothing is read from again."""
    going = [place for place, row in enumerate(rows) if not over(answers[row])]
    if going and len(going) < len(rows):
        cache.batch_select_indices(torch.tensor(going, dtype=torch.long))
    return [rows[place] for place in going]


def end_ids(model: Any) -> list[int]:
    """The tokens with which the model ends an answer."""
    end = model.generation_config.eos_token_id
    if end is None:
        return []
    return [end] if isinstance(end, int) else list(end)
