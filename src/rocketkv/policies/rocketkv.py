"""RocketKV (Behnam et al., ICML 2025, arXiv:2502.14051): evict once after the prompt, then select at every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from rocketkv.policies.base import Evictor, Prompt, Selector
from rocketkv.policies.hsa import HybridTopK
from rocketkv.policies.snapkv import SnapKV
from rocketkv.policies.two_stage import TwoStage
from rocketkv.types import Bool, Int, Tensor


@final
@dataclass(frozen=True, kw_only=True)
class RocketKV(TwoStage):
    """Two stages under one budget: SnapKV keeps a part of the prompt, hybrid sparse attention reads a part of that.

    Args:
        budget_tokens: t, memory traffic of one step per KV head, in key-value pairs.
        split: r in [0, 1], the exponent's share that eviction takes; None for min(0.2 + 0.06 log2 c, 0.8).
    """

    evictor: Evictor = field(default_factory=SnapKV)
    selector: Selector = field(default_factory=HybridTopK)

    @property
    def name(self) -> str:
        return "rocketkv"

    @property
    def slots(self) -> tuple[Evictor, Selector]:
        return self.evictor, self.selector


@final
@dataclass(frozen=True)
class Retained(Evictor):
    """Another evictor's choice, as candidates of this turn alone: what it does not choose stays in the store."""

    inner: Evictor

    @property
    def observes(self) -> int:
        return self.inner.observes

    @property
    def keeps_all(self) -> bool:
        return self.inner.keeps_all

    @property
    def retains(self) -> bool:
        return True

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        return self.inner.keep(prompt, kept_tokens)


@final
@dataclass(frozen=True, kw_only=True)
class RocketKVMT(TwoStage):
    """RocketKV for several turns: nothing is deleted; every turn chooses anew, from everything so far.

    The first stage chooses the turn's candidates, the second reads from them; all keys and values of all turns stay.
    """

    evictor: Evictor = field(default_factory=SnapKV)
    selector: Selector = field(default_factory=HybridTopK)

    @property
    def name(self) -> str:
        return "rocketkv-mt"

    @property
    def slots(self) -> tuple[Evictor, Selector]:
        return Retained(self.evictor), self.selector
