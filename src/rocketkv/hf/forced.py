"""How likely given continuations are under a compressed cache: each of their tokens is a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.policies.base import Policy


@dataclass(frozen=True)
class Forced:
    """For each continuation the sum of its tokens' log-likelihoods, and whether each token was the likeliest.

    `sparse_steps` and `dense_steps` count decode steps of the compressed layers, each layer's step being one: what the
    numbers were computed by.
    """

    log_likelihoods: list[float]
    greedy: list[bool]
    sparse_steps: int
    dense_steps: int


@torch.inference_mode()
def score_continuations(
    model: Any,
    policy: Policy,
    context_ids: Sequence[int],
    continuations: Sequence[Sequence[int]],
    *,
    backend: str = "auto",
) -> Forced:
    """Read the context once, compress, then force every continuation in a row of its own.

    The context is read up to its last token, which is the first decode step: were it read with the rest, a
    continuation's first token would be judged by the dense pass, whatever the policy. A context of one token leaves
    nothing to compress and is read.

    Raises ValueError for an empty context or continuation.
    """
    if not context_ids or not all(map(len, continuations)):
        raise ValueError("context and continuations need at least one token each: give a beginning-of-text token")
    cache = CompressedCache(model, [policy] * len(continuations), share_prompt=True, backend=backend)
    rows = list(range(len(continuations)))
    sums, greedy = [0.0] * len(rows), [True] * len(rows)
    read, last = list(context_ids[:-1]), context_ids[-1]
    with attach(model):
        ids = torch.tensor([read or [last]], device=model.device)
        logits = model(ids, logits_to_keep=1, use_cache=True, **cache.kwargs).logits[:, -1]
        cache.give_rows()
        if read:
            logits = _step(model, cache, [last] * len(rows))
        logits = logits.expand(len(rows), -1)
        for place in range(max(map(len, continuations))):
            wanted = torch.tensor([continuations[row][place] for row in rows], device=logits.device)
            likely = logits.float().log_softmax(-1)
            for row, value, best in zip(
                rows, likely.gather(1, wanted[:, None])[:, 0].tolist(), likely.argmax(-1) == wanted, strict=True
            ):
                sums[row] += value
                greedy[row] &= bool(best)
            going = [index for index, row in enumerate(rows) if len(continuations[row]) > place + 1]
            if not going:
                break
            if len(going) < len(rows):
                cache.batch_select_indices(torch.tensor(going, dtype=torch.long))
            rows = [rows[index] for index in going]
            logits = _step(model, cache, [continuations[row][place] for row in rows])
    report = cache.report()
    return Forced(sums, greedy, report.sparse_steps, report.dense_steps)


def _step(model: Any, cache: CompressedCache, tokens: list[int]) -> torch.Tensor:
    """Feed one token a row; the logits [rows, vocabulary] behind it."""
    ids = torch.tensor([[token] for token in tokens], device=model.device)
    logits: torch.Tensor = model(ids, use_cache=True, **cache.kwargs).logits
    return logits[:, -1]
