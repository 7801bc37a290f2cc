"""`rocketkv eval` and `rocketkv report`: from nothing to records, table and pictures; stopped and gone on."""

import json
import signal
import subprocess
import sys
import time

import pytest

from rocketkv.commands.sweep_progress import SweepProgress
from rocketkv.commands.terminal import duration
from rocketkv.records import read_records
from support.byte_model import save_byte_model
from support.eval_records import made_up_sweep
from support.eval_tasks import comparable

TASK = ("--task", "niah", "--haystack", "noise", "--depths", "2", "--backend", "reference", "--set", "wording=passkey")


@pytest.fixture(scope="module")
def byte_folder(tmp_path_factory):
    """A tiny model with room for prompts of a few hundred bytes."""
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


def test_from_nothing_to_table_records_and_pictures(cli, byte_folder, tmp_path):
    out = tmp_path / "sweep"
    command = ("eval", "--model", byte_folder, *TASK, "--lengths", "400,500", "--policy", "full,rocketkv:split=0.5,hsa",
               "--budgets", "64,128", "--out", out)  # fmt: skip
    first = cli(*command)
    assert first.code == 0, first.err
    records = read_records(out / "records.jsonl")
    assert len(records) == 2 * 2 * 5
    assert len(first.out.strip().splitlines()) == 2 + 2 * 5
    assert "| niah | 400 | rocketkv:split=0.5 | 64 |" in first.out
    assert {"needle-at-64.png", "score-by-budget.png", "report.md"} <= {path.name for path in out.iterdir()}
    assert not [path for path in out.iterdir() if path.is_dir()]
    again = cli(*command)
    assert again.out == first.out
    assert read_records(out / "records.jsonl") == records
    assert "\r" not in first.err  # nothing moves where nobody looks


def test_the_question_after_and_conversations(cli, byte_folder, tmp_path):
    after = cli("eval", "--model", byte_folder, *TASK, "--lengths", "400", "--policy", "rocketkv", "--budgets", "64",
                "--protocol", "after", "--out", tmp_path, "--no-report")  # fmt: skip
    talk = cli("eval", "--model", byte_folder, "--task", "multi/kv", "--set", "turns=2", "--n", "1", "--lengths", "900",
               "--policy", "full,rocketkv-mt", "--budgets", "64", "--turns", "own", "--out", tmp_path, "--no-report",
               "--backend", "reference")  # fmt: skip
    assert (after.code, talk.code) == (0, 0), after.err + talk.err
    records = read_records(tmp_path / "records.jsonl")
    assert [record["protocol"] for record in records[:2]] == ["after"] * 2
    assert {record["prefill_shared"] for record in records[:2]} == {"context"}
    assert [(record["policy"], record["turn"], record["turns"]) for record in records[2:]] == [
        ("full", 0, "own"), ("full", 1, "own"), ("rocketkv-mt", 0, "own"), ("rocketkv-mt", 1, "own")]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_killed_in_the_middle_ends_with_the_same_records(byte_folder, tmp_path, number):
    def command(out):
        task = [*TASK, "--n", "12", "--lengths", "400", "--policy", "full,rocketkv", "--budgets", "64,128"]
        return [sys.executable, "-m", "rocketkv", "eval", "--model", str(byte_folder), *task, "--out", str(out),
                "--no-report"]  # fmt: skip

    whole, torn = tmp_path / "whole", tmp_path / "torn"
    expected = subprocess.run(command(whole), check=True, capture_output=True, text=True).stdout
    process = subprocess.Popen(command(torn), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    path = torn / "records.jsonl"
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_bytes().count(b"\n") >= 4) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    before = len(read_records(path))
    assert 4 <= before < 36
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "goes on from there" in err
        assert "Traceback" not in err
    with path.open("ab") as file:
        file.write(b'{"schema": "rocketkv-e')
    second = subprocess.run(command(torn), check=True, capture_output=True, text=True)
    assert second.stdout == expected
    assert comparable(read_records(path)) == comparable(read_records(whole / "records.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--task", "nia"), "did you mean niah"),
        (("--set", "dephts=3"), "depths"),
        (("--depths", "0"), "below 1"),
        (("--policy", "rocketv"), "did you mean rocketkv"),
        (("--policy", "rocketkv:split"), "key=value"),
        (("--policy", "rocketkv:split=2"), "split"),
        (("--budgets", "8"), "below 16"),
        (("--lengths", "64"), "64"),
        (("--lengths", "6000"), "context holds 4,096"),
        (("--max-cache-bytes", "1000"), "limit is 1,000"),
        (("--haystack", "absent.txt"), "absent.txt"),
    ],
)
def test_what_does_not_fit_is_one_line(cli, byte_folder, tmp_path, arguments, words):
    result = cli("eval", "--model", byte_folder, *TASK, "--lengths", "400", "--policy", "rocketkv", "--budgets", "64",
                 "--out", tmp_path / "out", *arguments)  # fmt: skip
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1 and words in result.err, result.err


def test_a_report_from_records(cli, tmp_path):
    source = tmp_path / "records.jsonl"
    records = made_up_sweep(
        tasks=("niah",), lengths=(1024, 2048), budgets=(64, 128), specs=("full", "rocketkv", "hsa", "quest")
    )
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    out = tmp_path / "out"
    result = cli("report", source, "--out", out, "--kvpress")
    assert result.code == 0, result.err
    text = (out / "report.md").read_text()
    for name in (
        "score-by-budget",
        "selectors-alone",
        "needle-at-64",
        "needle-at-128",
        "score-by-length",
        "stored-by-length",
    ):
        assert f"]({name}.png)" in text
        assert (out / f"{name}.png").stat().st_size > 5000
    assert "A CPU, 2 cores" in text and "inside" in text
    assert len(list((out / "kvpress").glob("*/metrics.json"))) == 2 * (1 + 3 * 2)


def test_a_report_of_nothing_is_refused(cli, tmp_path):
    (tmp_path / "records.jsonl").write_text('{"schema": "another"}\n')
    for path, words in ((tmp_path / "absent", "does not exist"), (tmp_path, "no record of a sweep")):
        result = cli("report", path, "--out", tmp_path / "out")
        assert (result.code, result.out) == (2, "") and words in result.err


def test_the_moving_line_says_how_far_it_is():
    progress = SweepProgress()
    progress.begin(10, 2)
    progress.reading(3, 4096)
    progress.scored([{"policy": "full", "score": 1.0}, {"policy": "rocketkv", "score": 0.5}])
    progress.reading(4, 4096)
    progress.rate = 120.4
    line = progress.line("reading 4,096 tokens", 30.0)
    # Eight prompts are left to this run, one of them took 30 s: seven more take 3.5 minutes.
    assert line.startswith("prompt 4 of 10, reading 4,096 tokens, 120 tokens/s read, ")
    assert line.endswith("left, scores: full 1.00 rocketkv 0.50")
    assert duration(7 * 30.0) in line
