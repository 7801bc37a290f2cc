"""DuoAttention (Xiao et al., ICLR 2025, arXiv:2410.10819): retrieval heads keep all, the others sinks and newest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from rocketkv.policies.base import Evictor, Prompt
from rocketkv.policies.errors import PolicyMisfitError
from rocketkv.policies.head_pattern import HeadPattern, Table, read_pattern
from rocketkv.policies.streaming import sinks_and_recent
from rocketkv.types import Bool, Int, Tensor


@final
@dataclass(frozen=True)
class DuoHeads(Evictor):
    """Head by head: those whose pattern value reaches the threshold keep all, the others sink and recent tokens.

    Args:
        pattern: per compressed layer and KV head, 0 (streaming) to 1 (retrieval), with sink and recent sizes; from a
            file in the published format, or calibrated by `rocketkv calibrate duo`. A bare table has the usual sizes.
        threshold: pattern value from which a head is a retrieval head.
        sink_tokens, recent_tokens: instead of the pattern's own.

    The budget does not bind it: its cost is that of its full heads. `equivalent_tokens` says which budget that is.
    """

    pattern: HeadPattern | Table
    threshold: float = 0.5
    sink_tokens: int | None = None
    recent_tokens: int | None = None

    def __post_init__(self) -> None:
        pattern = HeadPattern(self.pattern) if isinstance(self.pattern, tuple) else self.pattern
        sink = pattern.sink_tokens if self.sink_tokens is None else self.sink_tokens
        recent = pattern.recent_tokens if self.recent_tokens is None else self.recent_tokens
        pattern = replace(pattern, sink_tokens=sink, recent_tokens=recent)
        object.__setattr__(self, "pattern", pattern)

    @staticmethod
    def load_pattern(path: str) -> HeadPattern:
        """The option `pattern` as text: a folder or a table in the published form. Raises ValueError in one line."""
        return read_pattern(path)

    @property
    def heads(self) -> HeadPattern:
        """The pattern with the sizes that hold."""
        assert not isinstance(self.pattern, tuple)
        return self.pattern

    @property
    def own_budget_tokens(self) -> int:
        return self.heads.sink_tokens + self.heads.recent_tokens

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        pattern = self.heads
        if (prompt.layers, prompt.keys.shape[1]) != (pattern.layers, pattern.kv_heads):
            raise PolicyMisfitError(
                f"the head pattern is {pattern.layers} layers x {pattern.kv_heads} KV heads, the model has "
                f"{prompt.layers} x {prompt.keys.shape[1]}: use a pattern made for this model"
            )
        device, columns = prompt.keys.device, prompt.keys.shape[2]
        retrieval = torch.tensor(pattern.values[prompt.layer], device=device) >= self.threshold  # [G]
        fixed = [torch.full_like(kept_tokens, tokens) for tokens in (pattern.sink_tokens, pattern.recent_tokens)]
        held = torch.arange(columns, device=device) >= columns - prompt.counts[..., None]
        return torch.where(retrieval[:, None], held, sinks_and_recent(prompt, *fixed))

    def equivalent_tokens(self, context_tokens: int) -> float:
        streaming = min(self.own_budget_tokens, context_tokens)
        values = [value for row in self.heads.values for value in row]
        full = sum(value >= self.threshold for value in values) / len(values)
        return full * context_tokens + (1 - full) * streaming
