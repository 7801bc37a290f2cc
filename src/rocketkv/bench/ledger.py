"""What a method holds and reads, measured on a synthetic layer, beside the formulas; every difference has a number.

All figures are shares of a full cache of the same tokens: Full-KV is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rocketkv.bench.synthetic import LayerShape, SyntheticLayer, policy_for
from rocketkv.bench.terms import Scene, Term, storage_terms, traffic_terms
from rocketkv.budget import traffic
from rocketkv.policies.base import Policy
from rocketkv.policies.registry import policy_names

SHRINK_FACTORS = (4, 16, 64)
PAPER: dict[str, Callable[[float, float], float]] = {
    "full": lambda c, r: 1.0,
    "rocketkv": lambda c, r: c**-r + 2 * c ** (-(1 + r) / 2),
    "rocketkv-mt": lambda c, r: 1 + 2 * c ** (-(1 + r) / 2),
    "snapkv": lambda c, r: 1 / c,
    "duoattention": lambda c, r: 1 / c,
    "quest": lambda c, r: 1 + 1 / c,
    "sparq": lambda c, r: 2.0,
}
"""Storage over a full cache's at c and r, as the paper prints it; it has no row for the other methods."""


@dataclass(frozen=True)
class Ledger:
    """One method at one shrink factor. `measured - derived` (or formula) is the sum of the terms, exactly."""

    method: str
    shrink_factor: float
    budget_tokens: int
    storage_paper: float | None
    storage_derived: float
    storage_measured: float
    storage_terms: tuple[Term, ...]
    traffic_formula: float
    traffic_measured: float
    traffic_terms: tuple[Term, ...]

    @property
    def storage_unexplained(self) -> float:
        """What of the measured storage neither formula nor terms account for; 0 up to rounding."""
        return self.storage_measured - self.storage_derived - sum(term.share for term in self.storage_terms)

    @property
    def traffic_unexplained(self) -> float:
        """The same for traffic."""
        return self.traffic_measured - self.traffic_formula - sum(term.share for term in self.traffic_terms)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def measure(name: str, *, context_tokens: int, shrink_factor: int, shape: LayerShape | None = None) -> Ledger:
    """Read context_tokens - 1 random tokens, decode one more, and count what is held and what that step read.

    Raises ValueError where context_tokens / shrink_factor is not a budget.
    """
    shape = shape or LayerShape()
    policy = policy_for(name, context_tokens // shrink_factor, shape)
    layer = SyntheticLayer(policy, shape, planned_new_tokens=1)
    layer.prompt(context_tokens - 1)
    (cache,) = layer.steps(1)
    plan = cache.plans[0]
    # Full-KV has no budget: c is 1.
    c, r = (1.0, 0.0) if policy.whole else (plan.shrink_factor, plan.split)
    full_bytes = context_tokens * shape.kv_heads * shape.pair_bytes
    scene = Scene(policy, plan, layer, context_tokens, full_bytes)
    return Ledger(
        method=name,
        shrink_factor=c,
        budget_tokens=context_tokens if policy.whole else plan.budget_tokens,
        storage_paper=PAPER[name](c, r) if name in PAPER else None,
        storage_derived=storage_derived(policy, c, r),
        storage_measured=cache.held_bytes() / full_bytes,
        storage_terms=storage_terms(scene),
        traffic_formula=traffic(c),
        traffic_measured=cache.counters.step_bytes / full_bytes,
        traffic_terms=traffic_terms(scene, name),
    )


def storage_derived(policy: Policy, shrink_factor: float, split: float) -> float:
    """What the method holds over a full cache, by the formula in c and r: keys and values, and one pair a page."""
    evictor, selector = policy.slots
    kept = 1.0 if evictor.keeps_all or evictor.retains else shrink_factor**-split
    return kept + selector.bounds_share(shrink_factor, split)


def ledgers(context_tokens: int, names: list[str] | None = None) -> list[Ledger]:
    """Every method at every shrink factor (Full-KV once). Raises ValueError for a context that is too short."""
    names = names or policy_names()
    return [
        measure(name, context_tokens=context_tokens, shrink_factor=c)
        for name in names
        for c in (SHRINK_FACTORS[:1] if name == "full" else SHRINK_FACTORS)
    ]
