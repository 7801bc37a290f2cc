"""RocketKV (Behnam et al., ICML 2025, arXiv:2502.14051): evict once after the prompt, then select at every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rocketkv.budget import check_split
from rocketkv.policies.base import Evictor, Policy, Selector
from rocketkv.policies.hsa import HybridTopK
from rocketkv.policies.snapkv import SnapKV


@dataclass(frozen=True, kw_only=True)
class RocketKV(Policy):
    """Two stages under one budget: SnapKV keeps a part of the prompt, hybrid sparse attention reads a part of that.

    Args:
        budget_tokens: t, memory traffic of one step per KV head, in key-value pairs.
        split: r in [0, 1], the exponent's share that eviction takes; None for min(0.2 + 0.06 log2 c, 0.8).
    """

    evictor: Evictor = field(default_factory=SnapKV)
    selector: Selector = field(default_factory=HybridTopK)
    split: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.split)

    @property
    def name(self) -> str:
        return "rocketkv"

    @property
    def slots(self) -> tuple[Evictor, Selector]:
        return self.evictor, self.selector

    @property
    def fixed_split(self) -> float | None:
        return self.split

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"split": "adaptive" if self.split is None else self.split}
