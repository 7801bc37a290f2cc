"""The policies that every law is checked over. A new method adds one line to POLICIES."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rocketkv.policies.base import Policy, Selection, Selector, Step
from rocketkv.policies.full import FullKV, ReadAll
from rocketkv.policies.hsa import HybridTopK
from rocketkv.policies.rocketkv import RocketKV
from rocketkv.policies.snapkv import SnapKV


@dataclass(frozen=True)
class HappensToReadAll(Selector):
    """Selects like any selector, at every sparse step, and chooses every token."""

    def select(self, q: torch.Tensor, step: Step) -> Selection:
        return ReadAll().select(q, step)


POLICIES: dict[str, Callable[[int], Policy]] = {
    "full": lambda t: FullKV(),
    "rocketkv": lambda t: RocketKV(budget_tokens=t),
    "split_0": lambda t: RocketKV(budget_tokens=t, split=0.0),
    "split_half": lambda t: RocketKV(budget_tokens=t, split=0.5),
    "split_1": lambda t: RocketKV(budget_tokens=t, split=1.0),
    "small_window": lambda t: RocketKV(budget_tokens=t, evictor=SnapKV(window_tokens=3, pool_tokens=5)),
    "average_pooling": lambda t: RocketKV(budget_tokens=t, evictor=SnapKV(pool_tokens=7, pooling="avg")),
    "sinks_and_locals": lambda t: RocketKV(
        budget_tokens=t, selector=HybridTopK(sink_tokens=2, local_tokens=4)
    ),
    "first_layer_whole": lambda t: RocketKV(budget_tokens=t, skip_layers=1),
    "evict_only": lambda t: RocketKV(budget_tokens=t, selector=ReadAll()),
}
"""Name -> the policy at a budget of t tokens."""

COMPRESSING = {name: make for name, make in POLICIES.items() if not make(16).whole}
EVERYTHING_READ: dict[str, Callable[[int], Policy]] = {
    "full": POLICIES["full"],
    "nothing_evicted": lambda t: RocketKV(budget_tokens=t, split=0.0, selector=HappensToReadAll()),
}
"""Policies whose plan is sparse but that happen to keep and read everything."""
