"""Who takes part in a sweep: policies at budgets, from specs such as `rocketkv:split=0.5`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rocketkv.policies.base import Policy
from rocketkv.policies.registry import make_policy, policy_names

ALL = "all"


@dataclass(frozen=True)
class Contender:
    """A policy as it was asked for. `budget_tokens` is None for Full-KV, which has none."""

    spec: str
    name: str
    options: tuple[tuple[str, str], ...]
    policy: Policy

    @property
    def budget_tokens(self) -> int | None:
        """t, None where there is no budget."""
        return None if self.policy.whole else self.policy.budget_tokens

    @property
    def label(self) -> str:
        """The spec, with the budget behind it."""
        return self.spec if self.budget_tokens is None else f"{self.spec} {self.budget_tokens}"

    def as_dict(self) -> dict[str, Any]:
        """What a record holds of it."""
        return {
            "policy": self.spec,
            "policy_name": self.name,
            "policy_options": dict(self.options),
            "budget_tokens": self.budget_tokens,
        }


def make_contenders(specs: Sequence[str], budgets: Sequence[int]) -> list[Contender]:
    """Every spec at every budget, Full-KV once, none twice.

    Args:
        specs: a policy's name, and its options behind colons (`sparq:mean_value=true`); `all` stands for every method
            that needs no file.

    Raises ValueError for an unknown name, option or value.
    """
    listed = [name for spec in specs for name in (standalone_names() if spec == ALL else [spec])]
    found: dict[tuple[str, int | None], Contender] = {}
    for spec in listed:
        name, *settings = spec.split(":")
        options = tuple(_setting(spec, text) for text in settings)
        for budget in budgets:
            made = Contender(spec, name, options, make_policy(name, budget, **dict(options)))
            found.setdefault((spec, made.budget_tokens), made)
    return list(found.values())


def standalone_names() -> list[str]:
    """Every method that needs no file, such as a calibration."""
    return [name for name in policy_names() if name not in needing_files()]


def needing_files() -> list[str]:
    """Methods that cannot be made without an option of their own."""
    names = []
    for name in policy_names():
        try:
            make_policy(name, 256)
        except ValueError:
            names.append(name)
    return names


def _setting(spec: str, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ValueError(f"policy {spec!r}: {text!r} is not of the form key=value, such as split=0.5")
    return key.strip(), value.strip()
