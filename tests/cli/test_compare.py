"""`rocketkv compare`: several policies on one prompt."""

import json

ARGUMENTS = ("compare", "--max-new-tokens", 4, "--policies", "full,rocketkv", "--budgets", "32,64")


def test_a_row_for_each_policy_and_budget(cli, folder, document):
    result = cli(*ARGUMENTS, "--model", folder, "--prompt-file", document)
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0].split()[0] == "policy"
    assert [line[:13].strip() for line in lines[1:]] == ["full", "rocketkv 32", "rocketkv 64"]
    assert "322 of 322" in lines[1]


def test_json_is_a_list(cli, folder, document):
    result = cli(*ARGUMENTS, "--model", folder, "--prompt-file", document, "--json")
    rows = json.loads(result.out)
    assert result.err == ""
    assert [(row["policy"], row["budget_tokens"]) for row in rows] == [
        ("full", None), ("rocketkv", 32), ("rocketkv", 64)
    ]  # fmt: skip
    assert rows[2]["cache_bytes"] > rows[1]["cache_bytes"]
    assert rows[0]["cache_bytes"] == rows[0]["full_cache_bytes"] == rows[1]["full_cache_bytes"]


def test_rows_equal_single_runs(cli, folder, document):
    prompt = ("--model", folder, "--prompt-file", document, "--max-new-tokens", 4, "--json")
    row = json.loads(cli("compare", "--policies", "rocketkv", "--budgets", 32, *prompt).out)[0]
    alone = json.loads(cli("generate", "--policy", "rocketkv", "--budget", 32, *prompt).out)
    assert [row[key] for key in ("text", "plan", "cache_bytes")] == [
        alone[key] for key in ("text", "plan", "cache_bytes")
    ]


def test_an_option_goes_to_the_policies_that_know_it(cli, folder, document):
    rows = json.loads(cli(*ARGUMENTS, "--model", folder, "--prompt-file", document, "--json", "--set", "split=0").out)
    assert [row["plan"]["kept_tokens"] for row in rows] == [319, 319, 319]
