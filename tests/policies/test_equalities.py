"""Methods that are one another at certain settings: the same tokens are read, in the same number of elements."""

import pytest
import torch

from rocketkv.bench.synthetic import LayerShape, SyntheticLayer
from rocketkv.cache.groups import lay_out
from rocketkv.cache.layer import LayerCache
from rocketkv.policies.base import Policy, Selection, Selector, Step
from rocketkv.policies.full import KeepAll
from rocketkv.policies.hsa import HybridTopK
from rocketkv.policies.quest import QuestPages
from rocketkv.policies.registry import make_policy
from rocketkv.policies.rocketkv import RocketKV
from rocketkv.policies.sparq import SparQ
from rocketkv.policies.two_stage import Composed

SHAPE = LayerShape(kv_heads=3, group_size=2, head_dim=20)
BUDGET = 40


def chosen(cache: LayerCache, selector: Selector, page: int, budget: int, q: torch.Tensor) -> Selection:
    """What a selector reads of what a layer holds, from pages of `page` tokens."""
    group = lay_out(cache.kv, None, selector, [0], [budget], [page], "reference")
    step = Step(cache.kv, None, group.bounds, cache.kv.lengths, torch.tensor([budget]), 0.3, 0, "reference")
    return selector.select(q, step)


def assert_same(one: Selection, two: Selection) -> None:
    """The same tokens, for the same price."""
    assert torch.equal(one.counts, two.counts)
    read = torch.arange(one.tokens.shape[-1]) < one.counts[..., None]
    assert torch.equal(one.tokens[read], two.tokens[read])
    assert one.estimate_elements == two.estimate_elements


def decoded(policy: Policy, shape: LayerShape, tokens: int, steps: int = 3) -> SyntheticLayer:
    """A synthetic layer after a prompt and a few steps."""
    layer = SyntheticLayer(policy, shape)
    layer.prompt(tokens)
    for _ in layer.steps(steps):
        pass
    return layer


@pytest.mark.parametrize("tokens", [43, 129, 517, 2000])
def test_sparq_is_hybrid_attention_with_pages_of_one_token(tokens: int) -> None:
    layer = decoded(Composed(budget_tokens=BUDGET, evictor=KeepAll(), selector=SparQ(), label="x"), SHAPE, tokens)
    q = torch.randn(1, 3, 2, 20)
    assert_same(chosen(layer.cache, SparQ(), 1, BUDGET, q), chosen(layer.cache, HybridTopK(), 1, BUDGET, q))


@pytest.mark.parametrize("tokens", [30, 43, 129, 517, 1200])
def test_hybrid_attention_alone_is_rocketkv_with_split_0(tokens: int) -> None:
    alone, split = make_policy("hsa", BUDGET), RocketKV(budget_tokens=BUDGET, split=0.0)
    caches = [decoded(policy, SHAPE, tokens).cache for policy in (alone, split)]
    plans = [cache.plans[0] for cache in caches]
    assert plans[0] == plans[1]
    assert plans[0].kept_tokens == tokens
    one, two = (cache.counters for cache in caches)
    assert (one.sparse_steps, one.dense_steps, one.step_bytes) == (two.sparse_steps, two.dense_steps, two.step_bytes)
    # Not a byte differs: the stores and the bounds are the same.
    assert caches[0].held_bytes() == caches[1].held_bytes()
    if caches[0].ragged is not None:
        for a, b in zip(caches[0].tensors(), caches[1].tensors(), strict=True):
            if not a.is_floating_point():
                assert torch.equal(a, b)
        q = torch.randn(1, 3, 2, 20)
        groups = [(cache.ragged, cache.ragged.groups[0]) for cache in caches]
        assert_same(*(group.selector.select(q, ragged.step(group, 0.3)) for ragged, group in groups))


@pytest.mark.parametrize("page", [1, 2, 3, 7])
@pytest.mark.parametrize("tokens", [43, 129, 517])
def test_quest_is_hybrid_attention_of_full_rank_where_a_group_has_one_head(tokens: int, page: int) -> None:
    # With every dimension read, SparQ's temperature is 1, and the sign of the only head picks the bound for Quest too.
    shape = LayerShape(kv_heads=3, group_size=1, head_dim=20)
    layer = decoded(make_policy("hsa", 16), shape, tokens)
    q = torch.randn(1, 3, 1, 20)
    held = int(layer.cache.kv.lengths.max())  # as a budget, this gives every dimension to the estimate
    full_rank, quest = (half_of(layer.cache, selector, page, held, q) for selector in (HybridTopK(), QuestPages()))
    assert torch.equal(full_rank.tokens, quest.tokens)
    assert full_rank.estimate_elements == quest.estimate_elements


class Half(Step):
    """A step that reads half of its tokens although all of them are inside the budget."""

    def read_counts(self, read_tokens: torch.Tensor) -> torch.Tensor:
        return self.lengths // 2


def half_of(cache: LayerCache, selector: Selector, page: int, budget: int, q: torch.Tensor) -> Selection:
    """Half of the tokens that are held, by a budget that gives the full rank."""
    group = lay_out(cache.kv, None, selector, [0], [budget], [page], "reference")
    step = Half(cache.kv, None, group.bounds, cache.kv.lengths, torch.tensor([budget]), 0.3, 0, "reference")
    return selector.select(q, step)


def test_quest_and_hybrid_attention_differ_where_heads_differ_in_sign() -> None:
    layer = decoded(make_policy("hsa", 16), SHAPE, 129)
    q = torch.randn(1, 3, 2, 20)
    picks = [half_of(layer.cache, selector, 4, 200, q) for selector in (HybridTopK(), QuestPages())]
    assert picks[0].estimate_elements < picks[1].estimate_elements
