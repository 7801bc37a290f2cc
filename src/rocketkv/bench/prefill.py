"""Reading a prompt: how long it takes under each policy, and the share of it that stage 1, the eviction, takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from rocketkv.bench.decode import Variant, vocabulary_size
from rocketkv.bench.timing import Row, times_of
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.plain import plain_cache
from rocketkv.policies.base import Policy


class StageClock:
    """Seconds that the eviction of each prefill took, all layers together."""

    def __init__(self) -> None:
        self.samples_s: list[float] = []

    def watch(self, cache: CompressedCache) -> None:
        """Count what the layers of a new cache spend on remembering queries and on ending the prompt."""
        self.samples_s.append(0.0)
        for state in cache.states:
            for name in ("observe", "end_chunk"):
                setattr(state, name, self._timed(getattr(state, name)))

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = work(*arguments)
            self.samples_s[-1] += time.perf_counter() - start
            return result

        return run


def rows_of(
    variant: Variant, context_tokens: int, policies: Sequence[Policy], *, seed: int, backend: str = "auto"
) -> list[tuple[Row, StageClock | None]]:
    """A prefill under transformers' own cache (the baseline) and under each policy, with the clock of its stage 1."""
    model = variant.model
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocabulary_size(model), (1, context_tokens), generator=generator)
    group = f"{variant.name}, {str(variant.dtype)[6:]}, a prompt of {context_tokens:,} tokens"
    settings = {"model": variant.name, "dtype": str(variant.dtype)[6:], "weights": variant.weights,
                "context_tokens": context_tokens, "backend": backend}  # fmt: skip

    @torch.inference_mode()
    def plain() -> None:
        model(ids, use_cache=True, logits_to_keep=1, **plain_cache(model)[1])

    @torch.inference_mode()
    def compressed(policy: Policy, clock: StageClock) -> None:
        cache = CompressedCache(model, policy, backend=backend)
        clock.watch(cache)
        with attach(model):
            model(ids, use_cache=True, logits_to_keep=1, **cache.kwargs)

    rows: list[tuple[Row, StageClock | None]] = [
        (Row("Full-KV, transformers' cache and SDPA", group, [plain], baseline=True, settings=dict(settings)), None)
    ]
    for policy in policies:
        clock = StageClock()
        call = partial(compressed, policy, clock)
        described = settings | {"policy": policy.describe()}
        rows.append((Row(f"{policy.name} {policy.budget_tokens}", group, [call], settings=described), clock))
    return rows


def add_stage_share(row: Row, clock: StageClock, median_ms: float) -> None:
    """Put the median of stage 1 and its share of the whole prefill in the row's settings."""
    stage_ms = times_of(clock.samples_s[1:] or clock.samples_s).p50_ms  # the first call is the warm-up
    row.settings["stage1_ms"] = stage_ms
    row.settings["stage1_share"] = stage_ms / median_ms
    row.settings["shown"] = f"stage 1: {stage_ms:.1f} ms, {100 * stage_ms / median_ms:.1f} %"
