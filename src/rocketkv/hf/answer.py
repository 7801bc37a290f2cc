"""One prompt answered under one policy, with what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList, TextStreamer

from rocketkv.budget import Plan
from rocketkv.cache.report import CacheReport
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.generate import generate
from rocketkv.hf.warm_up import warm_up
from rocketkv.policies.base import Policy


@dataclass(frozen=True)
class Answer:
    """A generated text and its cost.

    `prefill_s` is the time to the first token. `decode_tokens_per_s` counts only later tokens: None if there
    are none. `new_ids` include the end token. Bytes are those held when the answer is complete.
    """

    text: str
    new_ids: list[int]
    prompt_tokens: int
    policy: str
    plan: Plan
    cache_bytes: int
    full_cache_bytes: int
    prefill_s: float
    decode_tokens_per_s: float | None
    report: CacheReport

    @property
    def new_tokens(self) -> int:
        """How many tokens were generated."""
        return len(self.new_ids)

    def as_dict(self) -> dict[str, Any]:
        """Plain values under stable keys, for JSON."""
        plan_keys = ("kept_tokens", "page_tokens", "rank", "read_tokens")
        return {
            "text": self.text,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "policy": self.policy,
            "plan": {key: getattr(self.plan, key) for key in plan_keys},
            "cache_bytes": self.cache_bytes,
            "full_cache_bytes": self.full_cache_bytes,
            "prefill_s": self.prefill_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
        }


def answer(
    model: Any,
    tokenizer: Any,
    ids: list[int],
    policy: Policy,
    *,
    max_new_tokens: int,
    planned_new_tokens: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    backend: str = "auto",
    cache: CompressedCache | None = None,
    stop: Callable[[], bool] | None = None,
    on_text: Callable[[str], None] | None = None,
    on_prompt_layer: Callable[[int, int], None] | None = None,
) -> Answer:
    """Generate an answer to the prompt `ids`. Kernels are compiled before the clock starts.

    Args:
        cache: a cache of this policy that has read the first of `ids` already; a new one if not given.
        stop: asked after every token whether to end the answer there.
        temperature: 0 takes the likeliest token; above 0 samples, repeatably for one `seed`.
        on_text: called with each piece of text as it is complete.
        on_prompt_layer: called with (layers done, layers) while the prompt is read.

    Raises:
        UnsupportedModelError: for a model whose cache cannot be compressed.
        MemoryError: if memory runs out.
    """
    if cache is None:
        cache = CompressedCache(model, policy, planned_new_tokens=planned_new_tokens, backend=backend)
    cache.on_prompt_layer = on_prompt_layer
    longest = len(ids) + max(max_new_tokens, cache.states[0].planned_new_tokens)
    warm_up(model, cache.states[0].given_policies, tokens=longest, backend=cache.states[0].backend)
    clock = _Clock(tokenizer, on_text)
    prompt = torch.tensor([ids], device=model.device)
    if temperature > 0:
        torch.manual_seed(seed)
        sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature}
    else:
        sampling = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if stop is not None:
        sampling["stopping_criteria"] = StoppingCriteriaList([_Asked(stop)])
    start = time.perf_counter()
    try:
        out = generate(model, policy, cache=cache, input_ids=prompt, attention_mask=torch.ones_like(prompt),
                       max_new_tokens=max_new_tokens, num_beams=1, streamer=clock, **sampling)  # fmt: skip
    except RuntimeError as error:
        if "allocate memory" in str(error) or isinstance(error, torch.OutOfMemoryError):
            raise MemoryError(f"memory ran out while {len(ids):,} tokens were read or answered") from error
        raise
    new_ids = out[0, len(ids) :].tolist()
    report = cache.report()
    later_s = clock.last_s - clock.first_s
    return Answer(
        text=tokenizer.decode(new_ids, skip_special_tokens=True),
        new_ids=new_ids,
        prompt_tokens=len(ids),
        policy=policy.name,
        plan=cache.states[0].plans[0],
        cache_bytes=report.cache_bytes,
        full_cache_bytes=report.full_cache_bytes,
        prefill_s=clock.first_s - start,
        decode_tokens_per_s=(len(new_ids) - 1) / later_s if len(new_ids) > 1 else None,
        report=report,
    )


class _Asked(StoppingCriteria):
    """Ends an answer when `stop` says so."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.stop = stop

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), self.stop(), device=input_ids.device)


class _Clock(TextStreamer):
    """Notes when the first and the last token came, and passes complete pieces of text on."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None] | None) -> None:
        super().__init__(tokenizer, skip_special_tokens=True)
        self.on_text = on_text
        self.prompt_seen = False
        self.first_s = self.last_s = 0.0

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        if self.on_text is not None:
            super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if self.on_text is not None and text:
            self.on_text(text)
