"""`rocketkv plan`: the arithmetic, by hand."""

import json

import pytest

from rocketkv import budget


def test_the_check_values(cli):
    result = cli("plan", "--context", 109000, "--new", 128, "--budget", 256, "--head-dim", 128, "--json")
    plan = json.loads(result.out)
    assert result.code == 0
    assert result.err == ""
    assert plan["kept_tokens"] == 1232
    assert plan["capacity_tokens"] == 1360
    assert plan["page_tokens"] == 3
    assert plan["rank"] == 72
    assert plan["read_tokens"] == 128
    assert not plan["dense"]
    assert "cache_bytes" not in plan


def test_bytes_from_whole_numbers(cli):
    arguments = ("--context", 109000, "--new", 128, "--budget", 256, "--head-dim", 128)
    sizes = ("--kv-heads", 8, "--layers", 32, "--dtype", "bfloat16")
    plan = json.loads(cli("plan", *arguments, *sizes, "--json").out)
    pair_bytes = 8 * 32 * 2 * 128 * 2
    pages = 454  # 1360 / 3, rounded up
    assert plan["full_cache_bytes"] == 109128 * pair_bytes
    assert plan["cache_bytes"] == (1360 + pages) * pair_bytes
    # 454 pages of 72 of 128 dimensions, one bound each, are half of that in pairs.
    assert plan["step_bytes"] == int((128 + 454 * 72 / 256) * pair_bytes)


def test_formulas_at_the_papers_64_fold():
    r = budget.adaptive_split(64)
    assert r == pytest.approx(0.56)
    assert 1 / budget.storage_paper(64, 0) == pytest.approx(1 / (1 + 2 / 8))
    assert budget.storage_paper(64, r) == pytest.approx(64**-0.56 + 2 * 64**-0.78)
    assert budget.storage_derived(64, r) == pytest.approx(64**-0.56 + 64**-0.78)
    assert budget.traffic(64) == 1 / 64


def test_nothing_shrinks_below_the_budget():
    assert budget.storage_paper(0.5, 0.2) == budget.storage_derived(1, 0.2) == budget.traffic(0.5) == 1
    plan = budget.make_plan(100, budget_tokens=256, head_dim=8)
    assert budget.held_pairs(plan) == budget.step_pairs(plan) == 100


def test_pages_of_one_token_hold_their_keys_once():
    plan = budget.make_plan(300, budget_tokens=256, head_dim=8)
    assert plan.page_tokens == 1
    assert budget.held_pairs(plan) == 1.5 * plan.kept_tokens


def test_sizes_from_a_folder(cli, folder):
    plan = json.loads(cli("plan", "--context", 300, "--budget", 64, "--model", folder, "--json").out)
    assert plan["head_dim"] == 8
    assert plan["full_cache_bytes"] == 300 * 2 * 2 * (8 + 8) * 4


def test_a_fixed_split_and_a_wider_window(cli):
    arguments = ("plan", "--context", 4096, "--budget", 64, "--head-dim", 64, "--json")
    assert json.loads(cli(*arguments, "--split", 0.5).out)["kept_tokens"] == 512
    floored = json.loads(cli(*arguments, "--split", 1, "--window", 100).out)
    assert floored["kept_tokens"] == 101
    assert floored["floors"] == ["window"]


def test_another_share_for_the_estimate(cli):
    arguments = ("plan", "--context", 4096, "--budget", 64, "--head-dim", 64, "--json")
    half, quarter = (json.loads(cli(*arguments, *more).out) for more in ((), ("--estimate-share", 0.25)))
    assert (half["read_tokens"], quarter["read_tokens"]) == (32, 48)
    assert quarter["rank"] == half["rank"] // 2 and quarter["storage_held"] == half["storage_held"]
    assert abs(quarter["traffic_step"] - half["traffic_step"]) < 0.001
    assert "0.0625 to 0.9375" in cli(*arguments, "--estimate-share", 1).err


def test_in_words(cli):
    arguments = ("plan", "--budget", 256, "--head-dim", 128, "--context")
    assert "kept 1,232 of 109,000" in cli(*arguments, 109000, "--new", 128).out
    assert "dense" in cli(*arguments, 200).out
