"""The differences between formulas and what is held and read, from the rules that cause them: one number a rule.

Computed from the plan and from how many tokens each KV head has, never from the memory that is being explained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from rocketkv.bench.synthetic import LayerShape, SyntheticLayer
from rocketkv.budget import Plan, divided, rank_at
from rocketkv.cache.store import headroom
from rocketkv.policies.base import Policy

INDEX_BYTES = 8
"""Of an entry of an index table; a candidate's slot has half of it."""


@dataclass(frozen=True)
class Term:
    """A reason, and its share of a full cache."""

    reason: str
    share: float


@dataclass(frozen=True)
class Scene:
    """A method after one decode step of a synthetic layer that holds `context_tokens`."""

    policy: Policy
    plan: Plan
    layer: SyntheticLayer
    context_tokens: int
    full_bytes: int

    @property
    def shape(self) -> LayerShape:
        """Sizes of the layer."""
        return self.layer.shape

    @property
    def stored(self) -> list[int]:
        """Tokens that each KV head holds."""
        kv = self.layer.cache.kv
        return [self.context_tokens] * self.shape.kv_heads if kv is None else kv.lengths[0].tolist()

    @property
    def candidates(self) -> list[int]:
        """Tokens that each KV head may read."""
        retains = self.policy.slots[0].retains
        return [self.plan.capacity_tokens] * self.shape.kv_heads if retains else self.stored

    @property
    def page_tokens(self) -> int:
        """S of the pages that are laid out, 0 without: for the plan's length, or for the longest head at the prompt."""
        selector, budget, longest = self.policy.slots[1], self.plan.budget_tokens, max(self.candidates) - 1
        layout = selector.layout(budget, self.plan.capacity_tokens)
        if layout is None or self.policy.whole:
            return 0
        page, until = layout
        return page if longest <= until else (selector.layout(budget, longest) or layout)[0]

    def terms(self, pairs: Iterator[tuple[str, float]]) -> tuple[Term, ...]:
        """Terms from (reason, pairs over all KV heads); what is nothing is left out."""
        sums: dict[str, float] = {}
        for reason, count in pairs:
            sums[reason] = sums.get(reason, 0.0) + count * self.shape.pair_bytes / self.full_bytes
        return tuple(Term(reason, share) for reason, share in sums.items() if abs(share) > 1e-12)


def storage_terms(scene: Scene) -> tuple[Term, ...]:
    """Why more or less is held than the derived formula says."""
    return () if scene.policy.whole else scene.terms(_storage_pairs(scene))


def _storage_pairs(scene: Scene) -> Iterator[tuple[str, float]]:
    evictor, selector = scene.policy.slots
    plan, total, heads = scene.plan, scene.context_tokens, scene.shape.kv_heads
    c, r, page = plan.shrink_factor, plan.split, scene.page_tokens
    yield from _kept_pairs(scene)
    one_page = 0.5 if page == 1 else 1.0
    if page:
        at_page = sum(scene.candidates) / page * one_page
        why = f"pages of {page} tokens" if page > 1 else "pages of 1 token, whose bounds are the key, held once"
        yield why, at_page - heads * total * selector.bounds_share(c, r)
        pages = [-(-tokens // page) for tokens in scene.candidates]
        yield "last page in part", sum(pages) * one_page - at_page
    rooms = [_capacity(tokens - 1) for tokens in scene.stored]
    yield "room to grow", sum(rooms) - sum(scene.stored)
    choices = [_capacity(tokens - 1) for tokens in scene.candidates]
    if page:
        yield "room for pages", (sum(-(-room // page) for room in choices) - sum(pages)) * one_page
    if selector.basis(0) is not None:
        yield "basis of the keys", heads * scene.shape.head_dim**2 * 4 / scene.shape.pair_bytes
    tables = (3 + (3 if page else 0) + (3 if evictor.retains else 0)) * heads + (2 if page else 1)
    if evictor.retains:
        yield "indices of chosen tokens", sum(choices) * INDEX_BYTES / 2 / scene.shape.pair_bytes
    yield "index tables", tables * INDEX_BYTES / scene.shape.pair_bytes


def _kept_pairs(scene: Scene) -> Iterator[tuple[str, float]]:
    """Why the tokens held, over all heads, are not what the formula says."""
    evictor, plan, heads = scene.policy.slots[0], scene.plan, scene.shape.kv_heads
    if evictor.keeps_all or evictor.retains:
        return
    by_formula = heads * scene.context_tokens * plan.shrink_factor**-plan.split
    equivalent = evictor.equivalent_tokens(plan.context_tokens)
    if equivalent is not None:
        tokens = equivalent + plan.new_tokens
        yield f"whole heads: the pattern costs a budget of {tokens:,.0f}", heads * tokens - by_formula
        return
    floors = f"at least the {' and the '.join(plan.floors)} is kept" if plan.floors else "whole tokens"
    yield floors, heads * plan.capacity_tokens - by_formula


def _capacity(tokens: int) -> int:
    return int(headroom(torch.tensor([[tokens]])))


def traffic_terms(scene: Scene, name: str) -> tuple[Term, ...]:
    """Why a step reads more or less than the budget."""
    if scene.policy.whole:
        return ()
    selector = {"rocketkv": "hsa", "rocketkv-mt": "hsa"}.get(name, name.rpartition("+")[2])
    return scene.terms(ESTIMATES.get(selector, _everything)(scene))


def _everything(scene: Scene) -> Iterator[tuple[str, float]]:
    """Everything kept is read; the formula's t and the kept tokens differ as in storage."""
    yield from _kept_pairs(scene)


def _attended(scene: Scene, read_tokens: int, share: float) -> Iterator[tuple[str, float]]:
    heads, budget = scene.shape.kv_heads, scene.plan.budget_tokens
    yield "whole tokens attended", heads * (read_tokens - share * budget)


def _exact(scene: Scene) -> Iterator[tuple[str, float]]:
    heads, shape = scene.shape.kv_heads, scene.shape
    yield "every query head reads its own tokens", heads * (shape.group_size - 1) * scene.plan.budget_tokens


def _ranked(scene: Scene) -> Iterator[tuple[str, float]]:
    """HSA, SparQ and Loki: `rank` dimensions of one bound (or key) of every page (or token)."""
    budget, head_dim, page = scene.plan.budget_tokens, scene.shape.head_dim, max(scene.page_tokens, 1)
    share = scene.policy.slots[1].estimate_share
    yield from _attended(scene, scene.plan.read_tokens, 1 - share)
    for tokens in scene.candidates:
        exact = 2 * share * budget * page * head_dim / tokens
        rank = rank_at(tokens, budget_tokens=divided(budget, share)[0], page_tokens=page, head_dim=head_dim)
        why = "rank at least 1" if exact < 1 else "rank at most D" if exact > head_dim else "rank in whole dimensions"
        yield why, (rank - exact) * tokens / page / (2 * head_dim)
        yield "last page in part", (-(-tokens // page) - tokens / page) * rank / (2 * head_dim)


def _quest(scene: Scene) -> Iterator[tuple[str, float]]:
    budget, head_dim, page = scene.plan.budget_tokens, scene.shape.head_dim, scene.page_tokens
    yield from _attended(scene, budget // 2, 0.5)
    q = scene.layer.newest_query
    assert q is not None, "a scene has decoded a step"
    both = ((q[0] > 0).any(1) & (q[0] < 0).any(1)).sum(-1).tolist()  # [G]
    for tokens, dims in zip(scene.candidates, both, strict=True):
        pages = -(-tokens // page)
        yield "whole pages", pages / 2 - budget / 2
        yield "both bounds where heads differ in sign", pages * (dims if page > 1 else 0) / (2 * head_dim)


ESTIMATES: dict[str, Callable[[Scene], Iterator[tuple[str, float]]]] = {
    "exact-topk": _exact,
    "quest": _quest,
    "sparq": _ranked,
    "loki": _ranked,
    "hsa": _ranked,
}
