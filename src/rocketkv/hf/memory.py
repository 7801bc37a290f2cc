"""What reading a prompt will take: bytes of memory, and seconds at a rate measured on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from rocketkv.budget import Plan, held_pairs
from rocketkv.hf.shape import ModelShape, shape_of

WARM_UP_TOKENS = 64
RATE_TOKENS = 256
RATE_READS = 3
RATE_SECONDS = 2.0
FLOAT32_BYTES = 4


class PrefillMemoryError(MemoryError):
    """Reading the prompt needs more memory than is free; the message has both numbers."""


@dataclass(frozen=True)
class PrefillNeed:
    """Memory that reading a prompt takes beside the weights: the cache at its peak, intermediate values."""

    cache_bytes: int
    work_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.cache_bytes + self.work_bytes


def prefill_need(model: Any, prompt_tokens: int, plan: Plan) -> PrefillNeed:
    """Estimate the peak of an unchunked prefill: all layers as the plan keeps them, and one full layer."""
    shape, element_bytes = shape_of(model.config), model.dtype.itemsize
    pair_bytes = shape.kv_heads * 2 * shape.head_dim * element_bytes
    held = shape.full_layers * held_pairs(plan)
    sliding = (shape.layers - shape.full_layers) * min(prompt_tokens, shape.sliding_tokens)
    one_full = 0 if plan.dense else prompt_tokens
    numbers_per_token = 4 * shape.hidden + 3 * shape.intermediate
    work = prompt_tokens * numbers_per_token * element_bytes
    if model.config._attn_implementation == "eager":
        work += shape.heads * prompt_tokens**2 * (FLOAT32_BYTES + 2 * element_bytes)
    elif not plan.dense:
        work += shape.heads * prompt_tokens * 32 * FLOAT32_BYTES
    return PrefillNeed(int(pair_bytes * (held + sliding + one_full)), work)


def available_bytes() -> int:
    """Memory that a process can still get without swapping."""
    return int(psutil.virtual_memory().available)


def check_memory(need: PrefillNeed, prompt_tokens: int) -> None:
    """Raise PrefillMemoryError, with both numbers, if a prompt cannot be read in the memory that is free."""
    free = available_bytes()
    if need.memory_bytes > free:
        raise PrefillMemoryError(
            f"reading {prompt_tokens:,} tokens needs {need.memory_bytes / 1e9:.1f} GB of memory and "
            f"{free / 1e9:.1f} GB are free: shorten the text, or use a smaller model or dtype"
        )


@torch.inference_mode()
def prefill_seconds(model: Any, ids: list[int]) -> float:
    """How long reading `ids` will take, from a timed read of their first few hundred tokens.

    The work of the layers grows with the tokens, that of attention with their square; both are counted, and
    taken to run at the measured rate.
    """
    _read(model, ids[:WARM_UP_TOKENS])  # loads weights from disk, which happens once
    sample = ids[:RATE_TOKENS]
    best_s, spent_s, reads = float("inf"), 0.0, 0
    # The best of a few: other programs can only make a read slower.
    while reads < RATE_READS and spent_s < RATE_SECONDS:
        start = time.perf_counter()
        _read(model, sample)
        elapsed_s = time.perf_counter() - start
        best_s, spent_s, reads = min(best_s, elapsed_s), spent_s + elapsed_s, reads + 1
    return best_s * prefill_flops(model, len(ids)) / prefill_flops(model, len(sample))


def prefill_flops(model: Any, tokens: int) -> float:
    """Floating-point operations of a dense prefill, causal attention counted once."""
    shape = shape_of(model.config)
    embedding = model.get_input_embeddings().weight.numel()
    linear = 2.0 * tokens * max(model.num_parameters() - embedding, 1)
    return linear + _attention_flops(shape, tokens)


def _attention_flops(shape: ModelShape, tokens: int) -> float:
    seen = min(tokens, shape.sliding_tokens)
    full = shape.full_layers * tokens**2 / 2
    sliding = (shape.layers - shape.full_layers) * (tokens * seen - seen**2 / 2)
    return 4.0 * shape.heads * shape.head_dim * (full + sliding)


def _read(model: Any, ids: list[int]) -> None:
    model(input_ids=torch.tensor([ids], device=model.device), use_cache=False, logits_to_keep=1)
