"""Every entry of the registry says what it does, where it comes from and what can be set."""

import pytest

from rocketkv.policies.catalogue import method, methods
from rocketkv.policies.registry import known_options, make_policy, policy_names


@pytest.mark.parametrize("name", policy_names())
def test_every_entry_has_a_line_a_paper_and_its_options(name: str) -> None:
    found = method(name)
    assert 20 < len(found.line) < 120
    assert "arXiv:" in found.paper
    assert [option.name for option in found.options] == list(known_options(name))
    for option in found.options:
        assert option.kind and option.default
        assert "MISSING" not in option.default


def test_the_order_is_the_registrys() -> None:
    assert [found.name for found in methods()] == policy_names()


def test_published_settings_are_the_defaults() -> None:
    defaults = {option.name: option.default for option in method("snapkv").options}
    assert defaults["pool_tokens"] == str(make_policy("snapkv", 64).slots[0].pool_tokens) == "7"


def test_what_must_be_given_says_so() -> None:
    assert {option.name for option in method("loki").options if option.default == "required"} == {"bases"}


@pytest.mark.parametrize("name", ["quest", "snapkv", "sparq"])
def test_a_method_of_one_stage_has_nothing_to_split(name: str) -> None:
    with pytest.raises(ValueError, match="no option 'split'"):
        make_policy(name, 64, split="0.5")
    assert make_policy("snapkv+quest", 64, split="0.5").split == 0.5
