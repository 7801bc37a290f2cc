"""The answers of many policies to one script: the shared tokens are read once, then a policy decodes in each row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rocketkv.budget import Plan
from rocketkv.evals.room import batches_within, default_limit_bytes, prompt_bytes, row_bytes
from rocketkv.evals.script import Script
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.memory import PrefillMemoryError
from rocketkv.hf.snapshot import PromptSnapshot, fork
from rocketkv.hf.together import decode_rows, end_ids
from rocketkv.hf.warm_up import warm_up
from rocketkv.policies.base import Policy


@dataclass(frozen=True)
class Settings:
    """How a sweep runs a model: limits and the plan's N. `max_cache_bytes` None is half of the memory that is free."""

    planned_new_tokens: int = 0
    max_cache_bytes: int | None = None
    spill_folder: Path | None = None
    backend: str = "auto"


@dataclass(frozen=True)
class TurnAnswer:
    """What one policy said in one turn, and what it took.

    `prompt_tokens` were read before the answer, of which `shared_tokens` once for all policies. `kept_tokens` is the
    mean over layers and KV heads of what was stored when the answer began. Seconds are those of the whole batch of
    `rows` policies; `prefill_s` is the one reading of the shared tokens.
    """

    row: int
    turn: int
    ids: tuple[int, ...]
    prompt_tokens: int
    shared_tokens: int
    plan: Plan
    kept_tokens: float
    rows: int
    prefill_s: float
    turn_s: float
    decode_s: float


def answer_script(
    model: Any,
    tokenizer: Any,
    script: Script,
    policies: Sequence[Policy],
    settings: Settings,
    on_prompt_layer: Callable[[int, int], None] | None = None,
) -> Iterator[list[TurnAnswer]]:
    """The answers of all policies, in batches as large as the memory limit allows.

    Policies that do not fit beside each other start from one snapshot of the shared tokens, in memory, or on disk where
    the limit holds no snapshot beside the largest row. Where later turns see a policy's own answers, its rows have
    lengths of their own, so that each policy is a batch.

    Raises PrefillMemoryError, with both numbers, if one policy alone is above the limit.
    """
    batches, spilled = plan_batches(model, script, policies, settings)
    warm_up_for(model, script, policies, settings)
    ids = torch.tensor([script.shared_ids], device=model.device)
    options: dict[str, Any] = {"planned_new_tokens": settings.planned_new_tokens, "backend": settings.backend}
    start = time.perf_counter()
    if len(batches) == 1:
        cache, logits = _read_prompt(model, ids, policies, options, on_prompt_layer)
        yield _take_turns(model, tokenizer, script, cache, logits, batches[0], time.perf_counter() - start)
        return
    with TemporaryDirectory(dir=settings.spill_folder) if spilled else nullcontext(None) as folder:
        spill = None if folder is None else Path(folder)
        snapshot = PromptSnapshot(model, policies, ids, spill=spill, on_prompt_layer=on_prompt_layer, **options)
        prefill_s = time.perf_counter() - start
        for rows in batches:
            cache = snapshot.cache_for([policies[row] for row in rows])
            yield _take_turns(model, tokenizer, script, cache, snapshot.logits, rows, prefill_s)


def warm_up_for(model: Any, script: Script, policies: Sequence[Policy], settings: Settings) -> None:
    """Compile what the answers will need; nothing where that has been done."""
    answer = max(script.turns[-1].example.max_new_tokens, settings.planned_new_tokens)
    warm_up(model, policies, tokens=script.longest_tokens + answer, backend=settings.backend)


def plan_batches(
    model: Any, script: Script, policies: Sequence[Policy], settings: Settings
) -> tuple[list[list[int]], bool]:
    """Which policies decode together, as places in `policies`, and whether the shared tokens are spilled to disk.

    Raises PrefillMemoryError, with both numbers, if one policy alone is above the limit.
    """
    limit = default_limit_bytes() if settings.max_cache_bytes is None else settings.max_cache_bytes
    tokens, answer = script.longest_tokens, script.turns[-1].example.max_new_tokens
    copies = (
        2 if script.mode == "golden" else 1
    )  # a turn decodes on a copy, since the next one starts before its answer
    sizes = [copies * row_bytes(model, p, context_tokens=tokens, new_tokens=answer) for p in policies]
    if max(sizes) > limit:
        name = policies[sizes.index(max(sizes))].name
        raise PrefillMemoryError(
            f"policy {name} alone holds about {max(sizes):,} bytes for {tokens:,} tokens, and the limit is {limit:,}: "
            "raise --max-cache-bytes, take a shorter length, or leave the policy out"
        )
    alone = script.mode == "own"
    if not alone and sum(sizes) <= limit:
        return [list(range(len(policies)))], False
    snapshot = prompt_bytes(model, len(script.shared_ids))
    spilled = len(policies) > 1 and snapshot + max(sizes) > limit
    room = limit if spilled else limit - snapshot
    return ([[row] for row in range(len(policies))] if alone else batches_within(sizes, room)), spilled


@torch.inference_mode()
def _read_prompt(
    model: Any,
    ids: torch.Tensor,
    policies: Sequence[Policy],
    options: dict[str, Any],
    on_prompt_layer: Callable[[int, int], None] | None,
) -> tuple[CompressedCache, torch.Tensor]:
    """A cache that has read the prompt, a row for every policy, and the logits [1, vocabulary] of its last token."""
    cache = CompressedCache(model, policies, share_prompt=True, **options)
    cache.on_prompt_layer = on_prompt_layer
    with attach(model):
        logits = model(ids, logits_to_keep=1, use_cache=True, **cache.kwargs).logits[:, -1]
    cache.give_rows()
    cache.on_prompt_layer = None
    return cache, logits


@torch.inference_mode()
def _take_turns(
    model: Any,
    tokenizer: Any,
    script: Script,
    cache: CompressedCache,
    logits: torch.Tensor,
    rows: list[int],
    prefill_s: float,
) -> list[TurnAnswer]:
    """Every turn of the script, on a cache that has read the shared tokens."""
    answers: list[TurnAnswer] = []
    earlier: list[int] = []
    stops = end_ids(model)
    with attach(model):
        for number, turn in enumerate(script.turns):
            begin_s = time.perf_counter()
            if new := [*earlier, *turn.ids]:
                logits = _read_turn(model, cache, new, len(rows))
            report, plans = cache.report(), cache.states[0].plans
            read_s = time.perf_counter()
            goes_on = script.mode == "golden" and number + 1 < len(script.turns)
            said = decode_rows(
                model,
                fork(cache) if goes_on else cache,
                logits,
                max_new_tokens=turn.example.max_new_tokens,
                stop_ids=stops,
                ended=_stop_text_seen(tokenizer, turn.example.stop),
            )
            seconds = (prefill_s, read_s - begin_s, time.perf_counter() - read_s)
            for place, ids in enumerate(said):
                tokens = report.tokens_seen[place]
                counts = (tokens, len(script.shared_ids), plans[place], report.kept_tokens[place], len(rows))
                answers.append(TurnAnswer(rows[place], number, tuple(ids), *counts, *seconds))
            # What was said stays in the cache, but for the last token, which no step has read.
            earlier = list(turn.golden_ids) if goes_on else [t for t in said[0][-1:] if t not in stops]
    return answers


def _read_turn(model: Any, cache: CompressedCache, ids: list[int], rows: int) -> torch.Tensor:
    """Read a turn's tokens in every row; the logits of the last one, [rows, vocabulary]."""
    cache.begin_prefill(len(ids))
    batch = torch.tensor([ids], device=model.device).expand(rows, -1)
    logits: torch.Tensor = model(batch, logits_to_keep=1, use_cache=True, **cache.kwargs).logits
    return logits[:, -1]


def _stop_text_seen(tokenizer: Any, stop: Sequence[str]) -> Callable[[list[int]], bool] | None:
    """Whether a stop text stands behind an answer's first token."""
    if not stop:
        return None
    return lambda ids: any(text in tokenizer.decode(ids[1:]) for text in stop)
