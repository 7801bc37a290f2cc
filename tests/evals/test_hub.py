"""Rows from the hub: a fake one over HTTP, what a record says of them, and what is said where there is no network."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rocketkv.evals import hub
from rocketkv.evals.hub import HubData, open_data
from rocketkv.evals.registry import describe, make_task, make_tasks
from rocketkv.evals.tasks.rows import find_rows, read_rows
from support.byte_model import byte_tokenizer
from support.fake_hub import COMMIT, fake_hub

ROW = {"context": "The sky is blue.", "input": "Which colour?", "answers": ["blue"]}
CODE = """
import sys
from rocketkv.evals.hub import open_data
try:
    data = open_data(sys.argv[1])
except ValueError as error:
    sys.exit(str(error))
print(data)
print(data.local)
"""


def zipped(**files: str) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"data/{name}.jsonl", text)
    return memory.getvalue()


def resolve(address: str, cache: Path, asked: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`open_data` in a process of its own, since the hub's client reads its address once."""
    env = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", **more,
                        "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_DISABLE_TELEMETRY": "1"}  # fmt: skip
    return subprocess.run([sys.executable, "-c", CODE, asked], capture_output=True, text=True, env=env, timeout=60)


def test_files_are_fetched_once_and_found_again_without_a_network(tmp_path):
    files = {"data.zip": zipped(qasper=json.dumps(ROW)), "LongBench.py": b"print()", "deep/one.parquet": b"x"}
    with fake_hub("owner/LongBench", files) as (address, fetched):
        done = resolve(address, tmp_path, "hf://datasets/owner/LongBench")
        assert done.returncode == 0, done.stderr
        source, folder = done.stdout.splitlines()
        assert source == f"hf://datasets/owner/LongBench@{COMMIT}"
        assert fetched == ["data.zip"]
        assert [row["answers"] for row in read_rows(find_rows(Path(folder), "qasper"))] == [["blue"]]
        assert resolve(address, tmp_path, "hf://datasets/owner/LongBench/deep").stdout.startswith(f"{source}/deep\n")
        assert fetched == ["data.zip", "deep/one.parquet"]
        absent = resolve(address, tmp_path, "hf://datasets/owner/Absent")
        assert absent.returncode == 1 and "the hub does not give it" in absent.stderr
        assert "--local-dir FOLDER" in absent.stderr and absent.stderr.count("\n") == 1
    again = resolve("http://127.0.0.1:9", tmp_path, "hf://datasets/owner/LongBench", HF_HUB_OFFLINE="1")
    assert again.stdout == done.stdout, again.stderr
    other = resolve("http://127.0.0.1:9", tmp_path, "hf://datasets/owner/Other", HF_HUB_OFFLINE="1")
    assert (
        other.returncode == 1 and "owner/Other: the hub cannot be reached, and its files are not here" in other.stderr
    )


@pytest.fixture
def snapshot(tmp_path, monkeypatch):
    """A folder that every dataset is; gives it and what was asked of the hub."""
    folder, asked = tmp_path / COMMIT, []
    folder.mkdir()
    monkeypatch.setattr(hub, "_download", lambda *arguments: asked.append(arguments) or folder)
    monkeypatch.setattr(hub, "hub_is_out_of_reach", lambda: False)
    hub._from_hub.cache_clear()
    yield folder, asked
    hub._from_hub.cache_clear()


def test_a_group_of_tasks_asks_once_and_records_say_source_and_commit(snapshot, tmp_path):
    folder, asked = snapshot
    (folder / "data.zip").write_bytes(zipped(qasper=json.dumps(ROW), trec=json.dumps(ROW)))
    tasks = make_tasks(["longbench"], {"data": "hf://datasets/THUDM/LongBench@v1", "config": str(config(tmp_path))})
    assert [call[:2] for call in asked] == [("THUDM/LongBench", "v1")]
    assert {describe(task)["data"] for task in tasks} == {f"hf://datasets/THUDM/LongBench@{COMMIT}"}
    (qasper,) = (task for task in tasks if task.name == "longbench/qasper")
    (example,) = qasper.examples(byte_tokenizer(), max_tokens=300)
    assert example.context == "Text: The sky is blue." and example.references == ("blue",)


def config(folder: Path) -> Path:
    """Prompts and lengths of two tasks."""
    prompts = dict.fromkeys(("qasper", "trec"), "Text: {context}\nQuestion: {input}\nAnswer:")
    (folder / "dataset2prompt.json").write_text(json.dumps(prompts))
    (folder / "dataset2maxlen.json").write_text(json.dumps(dict.fromkeys(prompts, 8)))
    return folder


def test_without_prompts_it_is_said_where_they_are(snapshot):
    (snapshot[0] / "data.zip").write_bytes(zipped(qasper=json.dumps(ROW)))
    task = make_task("longbench/qasper", data="hf://datasets/THUDM/LongBench")
    with pytest.raises(ValueError, match="--set config=FOLDER"):
        list(task.examples(byte_tokenizer(), max_tokens=300))


@pytest.mark.parametrize("text", ["hf://THUDM/LongBench", "hf://datasets/LongBench", "hf://datasets/a/b/../../c"])
def test_another_form_is_refused(text):
    with pytest.raises(ValueError, match="is not of the form hf://datasets/OWNER/NAME"):
        open_data(text)


def test_a_revision_may_have_a_slash_and_a_path_is_inside(snapshot):
    folder, asked = snapshot
    (folder / "kv").mkdir()
    with pytest.raises(ValueError, match=r"has no file of rows .*hf://datasets/a/b/FOLDER"):
        open_data("hf://datasets/a/b@refs%2Fpr%2F1/kv")
    assert asked[0][1] == "refs/pr/1" and "kv/*.parquet" in asked[0][2]
    (folder / "kv" / "rows.jsonl").write_text("{}")
    assert open_data("hf://datasets/a/b/kv/") == HubData("a/b", COMMIT, "kv", folder / "kv")


def test_zips_are_read_in_place_and_damaged_ones_refused(tmp_path):
    archive = tmp_path / "data.zip"
    archive.write_bytes(zipped(trec=json.dumps(ROW)))
    assert list(read_rows(find_rows(archive, "trec"))) == list(read_rows(find_rows(tmp_path, "trec"))) == [ROW]
    assert [path.name for path in tmp_path.iterdir()] == ["data.zip"]
    with pytest.raises(ValueError, match=r"qasper.jsonl cannot be read"):
        list(read_rows(find_rows(tmp_path, "qasper")))
    archive.write_bytes(archive.read_bytes()[:40])
    with pytest.raises(ValueError, match="damaged or no zip file"):
        find_rows(tmp_path, "trec")


TALK = {"id": 3, "context": "k: 7", "multi_turns": [{"input": "k?", "answer": "7"}, {"input": "again?", "answer": "7"}]}


def test_parquet_rows_are_those_of_json_lines(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    shards, lines = tmp_path / "shards", tmp_path / "lines"
    shards.mkdir()
    lines.mkdir()
    for number in range(2):
        row = TALK | {"id": number}
        parquet.write_table(arrow.Table.from_pylist([row]), shards / f"test-0000{number}-of-00002.parquet")
        (lines / f"{number}.jsonl").write_text(json.dumps(row))
    made = [list(make_task("scbench", data=str(folder)).examples(byte_tokenizer(), max_tokens=600))
            for folder in (shards, lines)]  # fmt: skip
    assert [len(talks) for talks in made] == [2, 2]
    assert [(talk.context, talk.turns) for talk in made[0]] == [(talk.context, talk.turns) for talk in made[1]]
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(next(shards.iterdir()).read_bytes()[:50])
    with pytest.raises(ValueError, match="damaged or no Parquet file"):
        list(read_rows(torn))
    with pytest.raises(ValueError, match="row 1: answers is missing"):
        list(read_rows(shards, ("answers",)))


def test_without_pyarrow_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "one.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"pip install 'rocketkv\[data\]'"):
        list(read_rows(tmp_path))
    with pytest.raises(ValueError, match="has no file of rows"):
        list(read_rows(tmp_path / "..", ("x",)))
