"""A fact that matters only in turn two: RocketKV has dropped it by then, RocketKV-MT finds it."""

import pytest

import rocketkv
from rocketkv.policies.registry import make_policy
from support.two_turns import two_turns

BUDGET_TOKENS = 192
SEEDS = range(2)


@pytest.mark.model
def test_a_fact_for_turn_two_is_lost_by_rocketkv_and_found_by_rocketkv_mt() -> None:
    model, tokenizer = rocketkv.load_model("smollm2")
    names = ("full", "rocketkv", "rocketkv-mt")
    policies = [make_policy(name, BUDGET_TOKENS) for name in names]
    first, second = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for seed in SEEDS:
        for name, (one, two) in zip(names, two_turns(model, tokenizer, policies, seed=seed, tokens=1500), strict=True):
            first[name] += one
            second[name] += two
    print(f"turn one {first}, turn two {second}, of {len(SEEDS)} texts")
    assert min(first.values()) == len(SEEDS), "turn one is found by all"
    assert second["full"] == len(SEEDS)
    assert second["rocketkv-mt"] >= 1
    assert second["rocketkv"] == 0
