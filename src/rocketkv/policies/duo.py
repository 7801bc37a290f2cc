"""DuoAttention (Xiao et al., ICLR 2025, arXiv:2410.10819): retrieval heads keep all, the others sinks and newest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from rocketkv.policies.base import Evictor, Prompt
from rocketkv.policies.streaming import sinks_and_recent
from rocketkv.types import Bool, Int, Tensor


@final
@dataclass(frozen=True)
class DuoHeads(Evictor):
    """Head by head: those whose pattern value reaches the threshold keep all, the others `sink` and `recent` tokens.

    Args:
        pattern: per compressed layer and KV head, 0 (streaming) to 1 (retrieval); from a file in the published format,
            or calibrated by `rocketkv calibrate duo`.
        threshold: pattern value from which a head is a retrieval head.

    The budget does not bind it: its cost is that of its full heads. `equivalent_tokens` says which budget that is.
    """

    pattern: tuple[tuple[float, ...], ...]
    threshold: float = 0.5
    sink_tokens: int = 128
    recent_tokens: int = 256

    def __post_init__(self) -> None:
        if any(not 0 <= value <= 1 for row in self.pattern for value in row):
            raise ValueError("a head pattern has a value outside 0 to 1: give a table of layers x KV heads in that range")
        if self.sink_tokens < 0 or self.recent_tokens < 1:
            raise ValueError(f"sink_tokens={self.sink_tokens}, recent_tokens={self.recent_tokens}: give at least 0 and 1")

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        if prompt.layers != len(self.pattern) or prompt.keys.shape[1] != len(self.pattern[0]):
            raise ValueError(
                f"the head pattern is {len(self.pattern)} layers x {len(self.pattern[0])} KV heads, the model has "
                f"{prompt.layers} x {prompt.keys.shape[1]}: use a pattern made for this model"
            )
        device, columns = prompt.keys.device, prompt.keys.shape[2]
        retrieval = torch.tensor(self.pattern[prompt.layer], device=device) >= self.threshold  # [G]
        fixed = [torch.full_like(kept_tokens, tokens) for tokens in (self.sink_tokens, self.recent_tokens)]
        held = torch.arange(columns, device=device) >= columns - prompt.counts[..., None]
        return torch.where(retrieval[:, None], held, sinks_and_recent(prompt, *fixed))

    def equivalent_tokens(self, context_tokens: int) -> float:
        """Mean tokens kept per KV head for a prompt of `context_tokens`: the budget that this pattern costs."""
        streaming = min(self.sink_tokens + self.recent_tokens, context_tokens)
        values = [value for row in self.pattern for value in row]
        full = sum(value >= self.threshold for value in values) / len(values)
        return full * context_tokens + (1 - full) * streaming
