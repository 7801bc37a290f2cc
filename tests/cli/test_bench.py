"""`rocketkv bench` runs out of the box, and every row it prints is a record."""

import json
import sys
from pathlib import Path

import pytest

QUICK = ("--quick", "--seconds", 0, "--budgets", 64, "--threads", 1)
KEYS = {
    "schema", "time", "bench", "commit", "dirty", "host", "versions", "limits", "seed", "row", "group", "settings",
    "skipped", "n", "p20_ms", "p50_ms", "p80_ms", "named_bytes", "share_of_read_limit", "times_faster", "baseline",
    "peak_rss_bytes",
}  # fmt: skip


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of tiny tensors: the numbers do not matter here."""
    for name, value in (("QUICK_READ_BYTES", 1 << 16), ("QUICK_PRODUCT_SIDE", 8)):
        monkeypatch.setattr(f"rocketkv.bench.machine.{name}", value)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_limits: None) -> None:
    monkeypatch.chdir(tmp_path)


def test_attend_prints_a_table_and_appends_records(cli) -> None:
    for runs in (1, 2):
        result = cli("bench", "attend", *QUICK, "--shape", "2,2,8", "--contexts", 500, "--cold-mb", 1)
        assert result.code == 0, result.err
        for row in ("enable_gqa", "group as query rows", "dense kernel", "rocketkv 64", "quest 64", "loki 64"):
            assert row in result.out
        assert "limits: streaming read" in result.err
        records = [json.loads(line) for line in Path("records/bench.jsonl").read_text().splitlines()]
        assert len(records) == runs * (3 + 2 + 5)
    for record in records:
        assert set(record) == KEYS
        assert record["n"] >= 3 and 0 < record["p20_ms"] <= record["p50_ms"] <= record["p80_ms"]
        assert record["times_faster"] > 0 and record["share_of_read_limit"] > 0
        assert record["baseline"].startswith("PyTorch SDPA")
        assert record["host"]["cores"] >= 1 and record["versions"]["torch"]
    step = next(record for record in records if record["row"].startswith("rocketkv"))
    assert step["settings"]["policy"]["policy"] == "rocketkv" and step["settings"]["context_tokens"] == 500


def test_json_is_the_records(cli, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mine.jsonl"
    result = cli("bench", "attend", *QUICK, "--shape", "1,2,8", "--contexts", "300,50", "--cold-mb", 1,
                 "--selectors", "none", "--no-interleave", "--dtypes", "bfloat16",
                 "--record", path, "--json")  # fmt: skip
    records = json.loads(result.out)
    assert records == [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["skipped"] is None for record in records] == [True] * 8 + [False]
    assert "dense" in records[-1]["skipped"] and records[-1]["p50_ms"] is None


def test_decode_of_a_model(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    gguf = Path("model.gguf")
    gguf.touch()
    result = cli("bench", "decode", *QUICK, "--model", folder, "--contexts", 200, "--policies", "full,rocketkv,quest",
                 "--weights", "float,streamed,int8", "--gguf", gguf, "--json")  # fmt: skip
    assert result.code == 0, result.err
    records = json.loads(result.out)
    assert len(records) == 3 * (1 + 1 + 2) + 1
    assert {record["baseline"] for record in records[:-1]} == {"float weights, Full-KV, transformers' cache and SDPA"}
    assert "llama_cpp is not installed" in next(r["skipped"] for r in records if r["row"].startswith("llama.cpp"))
    compressed = {r["row"]: r["settings"]["cache_bytes"] for r in records if "cache_bytes" in r["settings"]}
    assert compressed["float weights, rocketkv 64"] < compressed["float weights, quest 64"]


def test_prefill_tells_the_share_of_stage_1(cli, folder: Path) -> None:
    result = cli("bench", "prefill", *QUICK, "--model", folder, "--contexts", 200, "--json")
    full, ours = json.loads(result.out)
    assert "stage1_ms" not in full["settings"]
    assert 0 < ours["settings"]["stage1_share"] < 1
    assert "stage 1:" in cli("bench", "prefill", *QUICK, "--model", folder, "--contexts", 200).out


def test_plots_come_from_records(cli, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    assert cli("bench", "plot").code == 2
    cli("bench", "attend", *QUICK, "--shape", "1,2,8", "--contexts", "300,400", "--cold-mb", 1, "--selectors", "none")
    cli("bench", "decode", *QUICK, "--model", folder, "--contexts", "150,200")
    result = cli("bench", "plot", "--out", "pictures")
    assert result.code == 0, result.err
    assert len(result.out.split()) == 2 and all(Path(path).stat().st_size > 0 for path in result.out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("attend", "--shape", "8,4"), "G,R,D"),
        (("attend", "--contexts", "12Q"), "12Q"),
        (("attend", "--dtypes", "float8"), "choose from float32"),
        (("attend", "--selectors", "snapkv"), "choose from hsa"),
        (("attend", "--backend", "gpu"), "unknown backend"),
        (("decode", "--weights", "int4"), "choose from float, streamed, int8"),
        (("decode", "--gguf", "none.gguf"), "no such file"),
        (("decode", "--policies", "rocket"), "did you mean"),
        (("plot", "--record", "none.jsonl"), "no such file"),
    ],
)
def test_bad_input_is_one_line(cli, arguments: tuple[str, ...], words: str) -> None:
    result = cli("bench", *arguments)
    assert result.code == 2 and words in result.err.splitlines()[-1]
