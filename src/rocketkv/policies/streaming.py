"""StreamingLLM (Xiao et al., ICLR 2024, arXiv:2309.17453): the first tokens and the newest ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from rocketkv.policies.base import Evictor, Prompt
from rocketkv.types import Bool, Int, Tensor


@final
@dataclass(frozen=True)
class Streaming(Evictor):
    """Keeps the first `sink_tokens` of the prompt and its newest ones, up to the budget.

    Differs: StreamingLLM numbers positions inside its window; here tokens keep their true positions. Generated tokens
    are not evicted.
    """

    sink_tokens: int = 4

    def __post_init__(self) -> None:
        if self.sink_tokens < 0:
            raise ValueError(
                f"sink_tokens={self.sink_tokens} is below 0: give the number of first tokens to keep, 4 is usual"
            )

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        recent = (kept_tokens - self.sink_tokens).clamp(min=0)
        return sinks_and_recent(prompt, kept_tokens.clamp(max=self.sink_tokens), recent)


def sinks_and_recent(
    prompt: Prompt, sink_tokens: Int[Tensor, "B"], recent_tokens: Int[Tensor, "B"]
) -> Bool[Tensor, "B G C"]:
    """The first and the last tokens of every segment."""
    columns = prompt.keys.shape[2]
    ordinal = torch.arange(columns, device=prompt.keys.device) - (columns - prompt.counts)[..., None]  # [B, G, C]
    first = ordinal < sink_tokens[:, None, None]
    last = ordinal >= prompt.counts[..., None] - recent_tokens[:, None, None]
    return (first | last) & (ordinal >= 0)
