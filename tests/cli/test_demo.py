"""The embedded default, and the main job on SmolLM2."""

import json
from pathlib import Path

import pytest

from rocketkv.evals.demo import make_demo


def test_the_fact_is_in_the_text_once_and_in_no_other_part():
    demo = make_demo()
    assert demo.text.count(demo.needle) == 1
    assert demo.text.count(demo.fact) == 1
    assert demo.fact not in demo.question + demo.answer_prefix


def test_depth_and_length():
    demo = make_demo(characters=9000, depth=0.5)
    assert 7000 < len(demo.text) < 9100
    assert 0.3 < demo.text.index(demo.needle) / len(demo.text) < 0.7


def test_the_demo_runs_on_any_model(cli, make_folder):
    folder = make_folder(max_position_embeddings=30_000)
    result = cli("demo", "--model", folder, "--budgets", "64", "--max-new-tokens", "2")
    assert result.code == 0
    assert make_demo().needle in result.err
    assert [line.split()[0] for line in result.out.splitlines()[-3:]] == ["policy", "full", "rocketkv"]


@pytest.mark.model
def test_the_main_job(cli):
    """Both answers have the planted number, and the compressed cache is as small as the plan says."""
    result = cli("demo", "--budgets", "256", "--json")
    full, rocket = json.loads(result.out)
    assert make_demo().fact in full["text"]
    assert make_demo().fact in rocket["text"]
    assert rocket["plan"]["kept_tokens"] < rocket["prompt_tokens"] / 2
    assert rocket["cache_bytes"] < 0.5 * full["cache_bytes"]


@pytest.mark.model
def test_the_readme_example_runs(tmp_path, monkeypatch, capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    example = readme.split("```python\n")[1].split("```")[0]
    (tmp_path / "document.txt").write_text(make_demo(characters=2500).text)
    monkeypatch.chdir(tmp_path)
    example = example.replace("max_new_tokens=64", "max_new_tokens=4")
    exec(compile(example, "README.md", "exec"), {})
    assert "tokens kept" in capsys.readouterr().out
