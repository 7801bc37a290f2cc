"""From a name on the command line to a policy."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from rocketkv.policies.base import Policy
from rocketkv.policies.full import FullKV
from rocketkv.policies.rocketkv import RocketKV

POLICIES: dict[str, Callable[..., Policy]] = {
    "full": FullKV,
    "rocketkv": RocketKV,
}


def make_policy(name: str, budget_tokens: int | None = None, **options: object) -> Policy:
    """The policy called `name` at a budget.

    Raises:
        ValueError: for an unknown name (with the near ones), a missing budget, or an option out of range.
    """
    if name not in POLICIES:
        near = difflib.get_close_matches(name, POLICIES, n=3, cutoff=0.4) or list(POLICIES)
        raise ValueError(f"unknown policy {name!r}: did you mean {' or '.join(near)}?")
    if name == "full":
        return POLICIES[name](**options)
    if budget_tokens is None:
        raise ValueError(f"policy {name!r} needs a budget: give budget_tokens (256 is a good start)")
    return POLICIES[name](budget_tokens=budget_tokens, **options)
