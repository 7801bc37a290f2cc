"""Full-KV, the baseline (Behnam et al., ICML 2025, arXiv:2502.14051): keep all, read all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch

from rocketkv.budget import Plan
from rocketkv.policies.base import Evictor, Policy, Prompt, Selection, Selector, Step
from rocketkv.types import Bool, Float, Int, Tensor

UNLIMITED_TOKENS = 1 << 62
"""Longer than any sequence: Full-KV has no budget."""


@final
@dataclass(frozen=True)
class KeepAll(Evictor):
    """Drops nothing."""

    @property
    def keeps_all(self) -> bool:
        return True

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        columns = prompt.keys.shape[2]
        return torch.arange(columns, device=prompt.keys.device) >= columns - prompt.counts[..., None]


@final
@dataclass(frozen=True)
class ReadAll(Selector):
    """Reads every kept token."""

    @property
    def reads_all(self) -> bool:
        return True

    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        token = torch.arange(int(step.lengths.max()), device=q.device)
        tokens = torch.where(token < step.lengths[..., None], token, 0)
        return Selection(tokens, step.lengths, 0)


@final
@dataclass(frozen=True, kw_only=True)
class FullKV(Policy):
    """The uncompressed model: every token kept and read, through the model's own attention."""

    budget_tokens: int = field(default=UNLIMITED_TOKENS, repr=False)

    @property
    def name(self) -> str:
        return "full"

    @property
    def slots(self) -> tuple[Evictor, Selector]:
        return KeepAll(), ReadAll()

    def plan(self, context_tokens: int, *, head_dim: int, new_tokens: int = 0) -> Plan:
        total = context_tokens + new_tokens
        return Plan(
            context_tokens,
            new_tokens,
            total,
            head_dim,
            dense=True,
            split=0.0,
            kept_tokens=context_tokens,
            page_tokens=1,
            rank=head_dim,
            read_tokens=total,
        )

    def with_budget(self, budget_tokens: int) -> Policy:
        return self

    def describe(self) -> dict[str, Any]:
        return {"policy": self.name}
