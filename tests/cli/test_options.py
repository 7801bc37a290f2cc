"""Options of a policy, as they are typed."""

import re

import pytest

from rocketkv import RocketKV, SnapKV, make_policy
from rocketkv.ops.dispatch import BACKENDS
from rocketkv.policies.registry import known_options


def test_an_option_finds_its_slot():
    settings = {
        "split": "0.5",
        "window_tokens": "16",
        "pooling": "avg",
        "local_tokens": "8",
        "skip_layers": "2",
    }
    policy = make_policy("rocketkv", 64, **settings)
    assert policy.split == 0.5
    assert policy.evictor == SnapKV(window_tokens=16, pooling="avg")
    assert policy.selector.local_tokens == 8
    assert policy.skip_layers == 2
    assert policy.budget_tokens == 64


def test_adaptive_is_a_value():
    assert make_policy("rocketkv", 64, split="adaptive") == RocketKV(budget_tokens=64)


@pytest.mark.parametrize("name", ["rocketkv", "rocketkv-mt", "hsa", "snapkv+hsa"])
def test_the_share_of_the_estimate(name):
    policy = make_policy(name, 64, estimate_share="0.25")
    plan = policy.plan(1000, head_dim=64)
    half = make_policy(name, 64).plan(1000, head_dim=64)
    assert (policy.slots[1].estimate_share, plan.read_tokens, half.read_tokens) == (0.25, 48, 32)
    assert half.rank // 2 == plan.rank and half.page_tokens == plan.page_tokens
    with pytest.raises(ValueError, match=r"estimate_share=0.95 is outside 0.0625 to 0.9375"):
        make_policy(name, 64, estimate_share="0.95")
    with pytest.raises(ValueError, match="no option"):
        make_policy("quest", 64, estimate_share="0.25")


def test_options_are_listed():
    assert set(known_options("rocketkv")) == {
        "skip_layers", "split", "window_tokens", "pool_tokens", "pooling", "sink_tokens", "local_tokens",
        "estimate_share",
    }  # fmt: skip
    assert known_options("full") == {}


def test_an_unknown_option_names_the_near_ones():
    with pytest.raises(ValueError, match="did you mean window_tokens"):
        make_policy("rocketkv", 64, windowtokens="3")


def test_an_option_that_two_slots_have_wants_its_slot():
    with pytest.raises(ValueError, match=r"evictor\.sink_tokens or selector\.sink_tokens"):
        make_policy("streamingllm+hsa", 64, sink_tokens="3")
    policy = make_policy("streamingllm+hsa", 64, **{"selector.sink_tokens": "3"})
    assert (policy.slots[0].sink_tokens, policy.slots[1].sink_tokens) == (4, 3)


@pytest.mark.parametrize("name", ["quets", "snapkv+qest", "hsa+snapkv"])
def test_an_unknown_policy_names_the_near_ones(name):
    with pytest.raises(ValueError, match="did you mean"):
        make_policy(name, 64)


def test_an_ill_typed_option_says_what_it_takes():
    with pytest.raises(ValueError, match="split='half' is not a number or none"):
        make_policy("rocketkv", 64, split="half")


def test_a_method_that_needs_a_file_says_so():
    with pytest.raises(ValueError, match="calibrate"):
        make_policy("loki", 64)


@pytest.mark.parametrize("command", [("generate",), ("chat",), ("eval",), ("bench", "attend")])
def test_help_names_every_backend(cli, command):
    text = " ".join(cli(*command, "--help").out.split())
    (told,) = re.findall(r"--backend B ([^-]*)", text)
    assert all(name in told for name in BACKENDS)
