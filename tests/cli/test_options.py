"""Options of a policy, as they are typed."""

import pytest

from rocketkv import FullKV, RocketKV, SnapKV
from rocketkv.policies.options import options_of, with_options


def test_an_option_finds_its_slot():
    policy = RocketKV(budget_tokens=64)
    settings = {
        "split": "0.5",
        "window_tokens": "16",
        "pooling": "avg",
        "local_tokens": "8",
        "skip_layers": "2",
    }
    changed = with_options(policy, settings)
    assert changed.split == 0.5
    assert changed.evictor == SnapKV(window_tokens=16, pooling="avg")
    assert changed.selector.local_tokens == 8
    assert changed.skip_layers == 2
    assert changed.budget_tokens == 64
    assert policy == RocketKV(budget_tokens=64)


def test_adaptive_is_a_value():
    assert with_options(RocketKV(budget_tokens=64, split=0.5), {"split": "adaptive"}).split is None


def test_options_are_listed_with_their_values():
    assert options_of(RocketKV(budget_tokens=64)) == {
        "skip_layers": 0, "window_tokens": 32, "pool_tokens": 63, "pooling": "max", "sink_tokens": 0,
        "local_tokens": 0, "split": None,
    }  # fmt: skip
    assert options_of(FullKV()) == {}


def test_an_unknown_option_names_the_near_ones():
    with pytest.raises(ValueError, match="did you mean window_tokens"):
        with_options(RocketKV(budget_tokens=64), {"windowtokens": "3"})
