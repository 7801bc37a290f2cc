"""`rocketkv calibrate`: files that policies read, progress, and bad input in one line."""

import json


def test_loki(cli, folder, document, tmp_path) -> None:
    out = tmp_path / "loki.safetensors"
    done = cli("calibrate", "loki", "--model", folder, "--text", document, "--out", out)
    assert done.code == 0, done.err
    assert done.out.strip() == str(out)
    assert "2 of 8 dimensions hold" in done.err
    answered = cli("generate", "--model", folder, "--prompt-file", document, "--policy", "loki", "--budget", "32",
                   "--set", f"bases={out}", "--max-new-tokens", "2", "--json")  # fmt: skip
    assert answered.code == 0, answered.err
    assert json.loads(answered.out)["policy"] == "loki"
    beside = cli("calibrate", "loki", "--model", folder, "--text", document, "--tokens", "64")
    assert beside.out.strip() == str(folder / "loki.safetensors")
    (folder / "loki.safetensors").unlink()


def test_loki_with_bad_input(cli, folder, document, tmp_path) -> None:
    for arguments, words in (
        (("--text", tmp_path / "absent"), "No such file"),
        (("--text", document, "--tokens", "5"), "5 tokens"),
        (("--text", document, "--out", tmp_path), "is a folder"),
    ):
        done = cli("calibrate", "loki", "--model", folder, *arguments)
        assert done.code == 2 and done.out == "" and words in done.err
        assert done.err.splitlines()[-1].startswith("rocketkv: ")


def test_duo(cli, folder, document, tmp_path) -> None:
    out = tmp_path / "pattern"
    small = ("--tokens", "420", "--sink", "4", "--recent", "12")
    done = cli("calibrate", "duo", "--model", folder, "--out", out, *small)
    # 8 passkeys of one-byte tokens need more than this.
    assert done.code == 2 and "give a longer prompt" in done.err
    done = cli("calibrate", "duo", "--model", folder, "--out", out, "--tokens", "900", *small[2:])
    assert done.code == 0, done.err
    assert done.out.strip() == str(out)
    assert "2 of 4 KV heads are retrieval heads" in done.err
    assert json.loads((out / "config.json").read_text())["sink_size"] == 4
    answered = cli("generate", "--model", folder, "--prompt-file", document, "--policy", "duoattention",
                   "--budget", "64", "--set", f"pattern={out}", "--max-new-tokens", "2")  # fmt: skip
    assert answered.code == 0, answered.err
    # Of 319 tokens with the chat template, half of the heads hold all and half 16.
    assert "kept 168 tokens per KV head" in answered.err


def test_a_pattern_of_another_model(cli, make_folder, document, tmp_path) -> None:
    (tmp_path / "full_attention_heads.tsv").write_text("1 0\n")
    done = cli("generate", "--model", make_folder(), "--prompt-file", document, "--policy", "duoattention",
               "--budget", "64", "--set", f"pattern={tmp_path / 'full_attention_heads.tsv'}")  # fmt: skip
    assert done.code == 2 and "1 layers x 2 KV heads, the model has 2 x 2" in done.err
    assert done.err.count("\n") == 1
