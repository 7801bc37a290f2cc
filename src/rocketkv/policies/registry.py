"""From a name on the command line to a policy. A new method is one line in EVICTORS or SELECTORS."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rocketkv.budget import MIN_BUDGET_TOKENS
from rocketkv.policies.adakv import AdaKV
from rocketkv.policies.base import Evictor, Policy, Selector
from rocketkv.policies.duo import DuoHeads
from rocketkv.policies.exact import ExactTopK
from rocketkv.policies.full import FullKV, KeepAll, ReadAll
from rocketkv.policies.hsa import HybridTopK
from rocketkv.policies.loki import Loki
from rocketkv.policies.options import convert, kind_of, options_of, required_of
from rocketkv.policies.quest import QuestPages
from rocketkv.policies.rocketkv import RocketKV, RocketKVMT
from rocketkv.policies.snapkv import SnapKV
from rocketkv.policies.sparq import SparQ
from rocketkv.policies.streaming import Streaming
from rocketkv.policies.tova import TOVA
from rocketkv.policies.two_stage import Composed

EVICTORS: dict[str, Callable[..., Evictor]] = {
    "keep-all": KeepAll,
    "snapkv": SnapKV,
    "adakv": AdaKV,
    "duoattention": DuoHeads,
    "streamingllm": Streaming,
    "tova": TOVA,
}
SELECTORS: dict[str, Callable[..., Selector]] = {
    "read-all": ReadAll,
    "exact-topk": ExactTopK,
    "quest": QuestPages,
    "sparq": SparQ,
    "loki": Loki,
    "hsa": HybridTopK,
}
WHOLE_POLICIES: dict[str, Callable[..., Policy]] = {
    "full": FullKV,
    "rocketkv": RocketKV,
    "rocketkv-mt": RocketKVMT,
}
PUBLISHED: dict[str, dict[str, Any]] = {"snapkv": {"pool_tokens": 7}}
"""Settings of a method on its own, where RocketKV uses it with others."""
RESERVED = {"budget_tokens", "evictor", "selector", "label", "scorer", "name"}
"""Fields that are not options of their own."""


def policy_names() -> list[str]:
    """Every name that stands alone; `evictor+selector` combines two of them."""
    slots = [name for name in [*EVICTORS, *SELECTORS] if name not in ("keep-all", "read-all")]
    return [*WHOLE_POLICIES, *slots]


def make_policy(name: str, budget_tokens: int | None = None, **options: Any) -> Policy:
    """The policy called `name` at a budget.

    Args:
        name: one of `policy_names()`, or an evictor and a selector joined by "+".
        budget_tokens: t; Full-KV has none, and DuoAttention on its own has one of its own: sink and recent tokens.
        options: fields of the policy, its evictor or its selector, as values or as text (`split="0.5"`). A field that
            both slots have is given as `evictor.sink_tokens` or `selector.sink_tokens`.

    Raises:
        ValueError: for an unknown name or option (with the near ones), a missing budget, a value that is ill-typed or
            out of range.
    """
    make, parts = _parts(name)
    chosen = _distribute(name, options, make, parts)
    if make is FullKV:
        return FullKV()
    built = {slot: _build(name, part, settings | chosen[slot]) for slot, (part, settings) in parts.items()}
    if budget_tokens is None and built["selector"].reads_all and built["evictor"].own_budget_tokens is not None:
        budget_tokens = max(built["evictor"].own_budget_tokens, MIN_BUDGET_TOKENS)
    if budget_tokens is None:
        raise ValueError(f"policy {name!r} needs a budget: give budget_tokens (256 is a good start)")
    if make is Composed:
        built["label"] = name
    return make(budget_tokens=budget_tokens, **built, **chosen["policy"])


def known_options(name: str) -> dict[str, str]:
    """The options that `make_policy(name)` takes: name -> what kind of value it is. Raises ValueError as it does."""
    return {field: kind_of(owner, field) for owner, fields, _ in options_by_owner(name) for field in fields}


def options_by_owner(name: str) -> list[tuple[Any, list[str], dict[str, Any]]]:
    """The classes that a policy is made of, each with the fields that are its options and its published settings.

    Raises ValueError for an unknown name.
    """
    make, parts = _parts(name)
    owned = _options_of(make, parts)
    settings = {slot: settings for slot, (_, settings) in parts.items()}
    return [(owner, fields, settings.get(slot, {})) for slot, (owner, fields) in owned.items()]


def class_of(name: str) -> Any:
    """The class that a name which stands alone is for: a policy's, an evictor's or a selector's."""
    return (WHOLE_POLICIES | SELECTORS | EVICTORS)[name]


def _parts(name: str) -> tuple[Any, dict[str, tuple[Any, dict[str, Any]]]]:
    """The class of the policy, and per slot the class and its published settings."""
    if name == "full":
        return FullKV, {}
    if name in WHOLE_POLICIES:
        return WHOLE_POLICIES[name], {"evictor": (SnapKV, {}), "selector": (HybridTopK, {})}
    evictor, selector = _slots_of(name)
    return Composed, {"evictor": evictor, "selector": selector}


def _options_of(make: Any, parts: Mapping[str, tuple[Any, dict[str, Any]]]) -> dict[str, tuple[Any, list[str]]]:
    """Per slot ("policy" for the whole) its class and the fields that are options."""
    owners = {} if make is FullKV else {"policy": make} | {slot: part for slot, (part, _) in parts.items()}
    one_stage = KeepAll in owners.values() or ReadAll in owners.values()
    hidden = RESERVED | ({"split"} if one_stage else set())  # with one stage there is nothing to split
    return {slot: (owner, [f for f in options_of(owner) if f not in hidden]) for slot, owner in owners.items()}


def _build(name: str, part: Any, settings: dict[str, Any]) -> Any:
    missing = [field for field in required_of(part) if field not in settings]
    if missing:
        raise ValueError(
            f"policy {name!r} needs the option {missing[0]!r}, a file: `rocketkv calibrate` makes one for a model"
        )
    return part(**settings)


def _slots_of(name: str) -> tuple[tuple[Any, dict[str, Any]], tuple[Any, dict[str, Any]]]:
    """The evictor and the selector that a name stands for, with their published settings."""
    first, plus, second = name.partition("+")
    if plus:
        evictor, selector = first, second
    elif name in SELECTORS:
        evictor, selector = "keep-all", name
    else:
        evictor, selector = name, "read-all"
    for part, table in ((evictor, EVICTORS), (selector, SELECTORS)):
        if part not in table:
            known = table if plus else policy_names()
            raise ValueError(f"unknown policy {part!r}: did you mean {_near(part, known)}?")
    return (EVICTORS[evictor], PUBLISHED.get(evictor, {})), (SELECTORS[selector], PUBLISHED.get(selector, {}))


def _distribute(
    name: str, options: Mapping[str, Any], make: Any, parts: Mapping[str, tuple[Any, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Each option, converted, under the part of the policy that has a field of that name."""
    owners = _options_of(make, parts)
    chosen: dict[str, dict[str, Any]] = {owner: {} for owner in ("policy", "evictor", "selector")}
    for key, value in options.items():
        slot, dot, field = key.rpartition(".")
        having = [o for o in ([slot] if dot else owners) if o in owners and field in owners[o][1]]
        if not having:
            known = {option for _, fields in owners.values() for option in fields}
            raise ValueError(f"policy {name!r} has no option {key!r}: did you mean {_near(field, known)}?")
        if len(having) > 1:
            raise ValueError(
                f"option {key!r} is in both {' and '.join(having)}: give {having[0]}.{key} or {having[1]}.{key}"
            )
        chosen[having[0]][field] = convert(owners[having[0]][0], field, value)
    return chosen


def _near(word: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return " or ".join(difflib.get_close_matches(word, known, n=3, cutoff=0.4) or known) or "none (it takes no options)"
