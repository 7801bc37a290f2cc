"""Tables from records: pairs by row, intervals that are repeatable, and the leaderboard's layout."""

import csv
import json

import numpy as np
import pytest
import yaml

from rocketkv.evals.export import export_kvpress
from rocketkv.evals.tables import briefly_named, interval, leads, leads_markdown, lines_of, markdown, unreached


def record(policy, budget, example, score, *, task="niah", turn=0, tokens=1024):
    return {
        "model": "own/tiny", "dtype": "float32", "weights": "float", "task": task, "max_tokens": tokens, "seed": 42,
        "protocol": "inside", "turns": None, "example": example, "turn": turn, "policy": policy,
        "policy_options": {}, "budget_tokens": budget, "score": score, "prediction": 'a, "b"\nc', "references": ["a|b"],
        "prompt_tokens": 1000, "meta": {}, "commit": "abc", "dirty": False, "versions": {"torch": "2"}, "host": {},
    }  # fmt: skip


def some_records():
    full = [record("full", None, f"e{i}", 1.0 if i < 8 else 0.0) for i in range(10)]
    rocket = [record("rocketkv", 64, f"e{i}", 1.0 if i < 6 else 0.0) for i in range(10)]
    return full + rocket + [record("snapkv", 64, "e9", 1.0), record("snapkv", 64, "other", 0.0)]


def test_the_interval_of_a_hand_worked_sample():
    found = interval([0.0, 1.0] * 50)
    assert found.mean == 0.5 and found.n == 100
    assert 0.38 < found.low < 0.42 and 0.58 < found.high < 0.62  # 0.5 -+ 1.96 * 0.05
    assert interval([0.0, 1.0] * 50) == found
    assert (interval([0.3] * 4).low, interval([0.3] * 4).high) == pytest.approx((0.3, 0.3))
    with pytest.raises(ValueError, match="at least one"):
        interval([])


def test_files_among_options_are_named_without_their_folders_unless_that_makes_two_policies_one():
    given = [
        "loki:bases=/a/b/one.safetensors",
        "rocketkv:split=0.5",
        "duoattention:pattern=x/p",
        "duoattention:pattern=y/p",
    ]
    found = briefly_named([record(spec, 64, "e", 1.0) for spec in given])
    assert [r["policy"] for r in found] == ["loki:bases=one.safetensors", given[1], given[2], given[3]]


def test_rows_of_two_files_that_have_one_name_are_two_examples():
    rows = []
    for prompt, full, rocket in (("a", 1.0, 0.0), ("b", 0.0, 0.0)):
        rows += [record("full", None, "e", full) | {"prompt_sha256": prompt}]
        rows += [record("rocketkv", 64, "e", rocket) | {"prompt_sha256": prompt}]
    lines = {line.policy: line for line in lines_of(rows)}
    assert lines["full"].score.n == 2 and lines["rocketkv"].difference.mean == -0.5


def test_differences_are_paired_by_row():
    lines = {line.policy: line for line in lines_of(some_records())}
    assert lines["full"].score.mean == 0.8 and lines["full"].difference is None
    gap = lines["rocketkv"].difference
    assert gap.mean == pytest.approx(-0.2) and gap.n == 10 and gap.low <= -0.2 <= gap.high
    # The difference varies less than the scores do: only two of ten rows differ.
    assert gap.high - gap.low < lines["rocketkv"].score.high - lines["rocketkv"].score.low
    assert lines["snapkv"].score.n == 2 and lines["snapkv"].difference.n == 1
    assert lines["snapkv"].difference.mean == 1.0
    assert [line.policy for line in unreached(lines.values())] == ["snapkv"]


def test_turns_pair_one_by_one_and_are_one_example():
    records = [record("full", None, "e", 1.0, turn=0), record("full", None, "e", 0.0, turn=1),
               record("quest", 64, "e", 0.0, turn=1), record("quest", 64, "e", 1.0, tokens=2048)]  # fmt: skip
    lines = lines_of(records)
    assert [(line.policy, line.max_tokens, line.score.n) for line in lines] == [
        ("full", 1024, 1), ("quest", 1024, 1), ("quest", 2048, 1)]  # fmt: skip
    assert lines[0].score.mean == 0.5
    assert lines[1].difference.mean == 0.0


def test_the_markdown_table_says_n_and_intervals():
    text = markdown(lines_of(some_records()))
    rows = [line.split("|")[1:-1] for line in text.splitlines()]
    assert len({len(row) for row in rows}) == 1
    assert "| niah | 1,024 | full | - | 80.0 |" in text
    assert "-20.0 (" in text and ", n 1 |" in text


def test_the_leaderboard_layout(tmp_path):
    records = [*some_records(), record("rocketkv", 64, "v", 0.5, task="ruler/vt")]
    folders = export_kvpress(records, tmp_path)
    assert len(folders) == 3 and all(folder.parent == tmp_path for folder in folders)
    (rocket,) = [folder for folder in folders if "rocketkv" in folder.name]
    assert json.loads((rocket / "metrics.json").read_text()) == {
        "niah": {"string_match": 60.0}, "ruler/vt": {"string_match": 50.0}}  # fmt: skip
    with (rocket / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11 and rows[0]["predicted_answer"] == 'a, "b"\nc'
    assert np.mean([float(row["score"]) for row in rows if row["task"] == "niah"]) == pytest.approx(0.6)
    config = yaml.safe_load((rocket / "config.yaml").read_text())
    assert config["press_name"] == "rocketkv" and config["budget_tokens"] == 64 and config["commit"] == "abc"


def test_the_lead_over_each_other_policy_is_paired_at_the_same_budget():
    records = [record("rocketkv", 64, f"e{i}", 1.0) for i in range(4)]
    records += [record("snapkv", 64, f"e{i}", float(i > 0)) for i in range(4)] + [record("snapkv", 64, "other", 0.0)]
    records += [record("rocketkv", 128, "e0", 0.0), record("snapkv", 128, "e0", 1.0), record("full", None, "e0", 1.0)]
    records += [record("quest", 256, "e0", 1.0)]  # nothing of the leader's to pair with
    found = leads(records)
    assert set(found) == {(1024, 64, "snapkv"), (1024, 128, "snapkv")}
    assert found[1024, 64, "snapkv"].mean == 0.25 and found[1024, 64, "snapkv"].n == 4
    assert found[1024, 128, "snapkv"].mean == -1
    text = leads_markdown(found)
    assert "| 1,024 | snapkv | +25.0 (+0.0 to +75.0), n 4 | -100.0 (-100.0 to -100.0), n 1 |" in text
