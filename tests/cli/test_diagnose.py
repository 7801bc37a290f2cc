"""`rocketkv diagnose`: a table, arrays and pictures; bad input in one line."""

import sys

import numpy as np
import pytest


def test_table_arrays_and_pictures(cli, folder, document, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "deep" / "out"
    done = cli("diagnose", "--model", folder, "--prompt-file", document, "--question", "Which fox?", "--policies",
               "rocketkv,snapkv", "--budget", "64", "--max-new-tokens", "3", "--out", out)  # fmt: skip
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["policy", "tokens", "read"]
    assert lines[1].startswith("rocketkv 64") and lines[2].startswith("snapkv 64")
    assert "3 steps, 2 layers and 2 KV heads" in done.out and "distinct tokens" in done.out
    assert sorted(path.name for path in out.iterdir()) == ["diagnosis.npz", "distinct.png", "mass.png", "recall.png"]
    with np.load(out / "diagnosis.npz") as arrays:
        assert arrays["mass"].shape == (2, 3, 2, 2)


def test_bad_input(cli, folder, document, tmp_path, monkeypatch) -> None:
    given = ("diagnose", "--model", folder, "--prompt-file", document, "--out", tmp_path / "out")
    for arguments, words in (
        (("--policies", "full,rocketkv"), "leave it out"),
        (("--policies", "rocket"), "unknown policy"),
        (("--budget", "3"), "below 16"),
    ):
        done = cli(*given, *arguments)
        assert done.code == 2 and done.out == "" and words in done.err and done.err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = cli(*given)
    assert done.code == 2 and "pip install 'rocketkv[plots]'" in done.err
    assert not (tmp_path / "out").exists()
