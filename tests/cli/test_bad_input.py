"""Every kind of bad input: one clear line on standard error, exit code 2, nothing on standard output."""

import json
import shutil
from pathlib import Path

import pytest

from rocketkv.hf.bars import no_bars
from support.tiny_gguf import write_tiny_gguf

GENERATE = ("generate", "--max-new-tokens", "2", "--model")


def refused(result, *words: str) -> None:
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert result.err.endswith("\n")
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err, result.err


def test_a_missing_prompt_file(cli, folder, tmp_path):
    refused(cli(*GENERATE, folder, "--prompt-file", tmp_path / "absent.txt"), "absent.txt", "No such file")


def test_a_directory_as_prompt_file(cli, folder, tmp_path):
    refused(cli(*GENERATE, folder, "--prompt-file", tmp_path), "is a directory")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\x89PNG\r\n\x1a\n", "is not UTF-8 text"),
        (b"text\0text", "binary"),
        ("text".encode("utf-16"), "is not UTF-8 text"),
        (b"caf\xe9", "byte 3 of 4"),
    ],
)
def test_a_file_that_holds_no_text(cli, folder, tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    refused(cli(*GENERATE, folder, "--prompt-file", path), words)


def test_an_empty_prompt(cli, folder):
    refused(cli(*GENERATE, folder, "--prompt", " "), "--prompt is empty")


def test_no_prompt_at_all(cli, folder):
    refused(cli(*GENERATE, folder), "--prompt-file", "required")


def test_a_prompt_longer_than_the_context(cli, folder, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("x" * 600)
    refused(cli(*GENERATE, folder, "--prompt-file", path), "512", "tokens and the model's context holds")


def test_a_folder_without_weights(cli, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()
    refused(cli(*GENERATE, tmp_path / "bare", "--prompt", "x"), "no weights")


def test_a_folder_with_half_a_weights_file(cli, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "half")
    weights = tmp_path / "half" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(cli(*GENERATE, tmp_path / "half", "--prompt", "x"), "damaged")


def test_a_folder_that_is_no_model(cli, tmp_path):
    refused(cli(*GENERATE, tmp_path, "--prompt", "x"), "no config.json")


def test_an_unknown_model_name(cli):
    refused(cli(*GENERATE, "smollm", "--prompt", "x"), "did you mean smollm2")


@pytest.mark.parametrize("command", ["generate", "import"])
def test_a_truncated_gguf(cli, tmp_path, command):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-500])
    arguments = ("import", path) if command == "import" else (*GENERATE, path, "--prompt", "x")
    refused(cli(*arguments), "tiny.gguf")


@pytest.mark.parametrize("command", ["generate", "import"])
def test_a_foreign_file_named_gguf(cli, tmp_path, command):
    path = tmp_path / "foreign.gguf"
    path.write_bytes(b"not a model" * 99)
    arguments = ("import", path) if command == "import" else (*GENERATE, path, "--prompt", "x")
    refused(cli(*arguments), "foreign.gguf")


def test_an_import_of_nothing(cli, tmp_path):
    refused(cli("import", tmp_path / "absent.gguf"), "cannot be imported")


def test_an_unwritable_target(cli, tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("in the way")
    refused(cli("import", path, "--to", tmp_path / "file" / "folder"), "file")


def test_an_unsupported_architecture(cli, folder, tmp_path):
    strange = tmp_path / "strange"
    shutil.copytree(folder, strange)
    config = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps(config | {"model_type": "nosuch"}))
    refused(cli(*GENERATE, strange, "--prompt", "x"), "nosuch")


def test_a_model_with_latent_attention(cli, tokenizer, tmp_path):
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        vocab_size=259, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=2, num_experts_per_tok=1, n_group=1,
        topk_group=1, kv_lora_rank=8, q_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
    )  # fmt: skip
    with no_bars():
        DeepseekV2ForCausalLM(config).save_pretrained(tmp_path / "mla")
    tokenizer.save_pretrained(tmp_path / "mla")
    refused(cli(*GENERATE, tmp_path / "mla", "--prompt", "x"), "DeepseekV2ForCausalLM", "MLA")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "roketkv"), "did you mean rocketkv"),
        (("--policy", "zzz"), "unknown policy 'zzz'"),
        (("--budget", "8"), "below 16"),
        (("--budget", "-4"), "below 1"),
        (("--budget", "many"), "not a whole number"),
        (("--set", "window_tokens=0"), "window_tokens=0 is below 1"),
        (("--set", "window_tokens=x"), "not a whole number"),
        (("--set", "split=1.5"), "outside 0 to 1"),
        (("--set", "split=nan"), "outside 0 to 1"),
        (("--set", "pool_tokens=8"), "odd"),
        (("--set", "pooling=median"), "max or avg"),
        (("--set", "spilt=0.5"), "did you mean split"),
        (("--set", "split"), "key=value"),
        (("--set", "name=x"), "name is no option"),
        (("--set", "budget_tokens=64"), "budget_tokens is no option"),
        (("--set", "evictor.spilt=1"), "split"),
        (("--policy", "full", "--set", "split=0.5"), "no option 'split'"),
        (("--max-new-tokens", "0"), "below 1"),
        (("--planned-new-tokens", "-1"), "below 0"),
        (("--temperature", "-1"), "out of range"),
        (("--temperature", "inf"), "out of range"),
        (("--threads", "0"), "below 1"),
        (("--dtype", "int8"), "invalid choice"),
        (("--backend", "cuda9"), "unknown backend"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_arguments_out_of_range(cli, folder, arguments, words):
    refused(cli(*GENERATE, folder, "--prompt", "x", *arguments), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policies", ","), "empty"),
        (("--policies", "full,nope"), "unknown policy 'nope'"),
        (("--budgets", "256,x"), "not a whole number"),
        (("--set", "nope=1"), "nope"),
    ],
)
def test_comparisons_out_of_range(cli, folder, arguments, words):
    refused(cli("compare", "--model", folder, "--prompt", "x", *arguments), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--context", "0", "--head-dim", "8"), "below 1"),
        (("--context", "99"), "--head-dim or --model"),
        (("--context", "99", "--head-dim", "8", "--budget", "15"), "below 16"),
        (("--context", "99", "--head-dim", "8", "--split", "2"), "0 to 1"),
        (("--context", "99", "--head-dim", "8", "--window", "0"), "below 1"),
        (("--context", "99", "--model", "nosuch"), "not a folder"),
        (("--context", "1e5", "--head-dim", "8"), "not a whole number"),
    ],
)
def test_plans_out_of_range(cli, arguments, words):
    refused(cli("plan", *arguments), words)


def test_a_plan_from_a_damaged_config(cli, tmp_path: Path):
    (tmp_path / "config.json").write_text("[]")
    refused(cli("plan", "--context", "99", "--model", tmp_path), "damaged")
    (tmp_path / "config.json").write_text('{"hidden_size": "wide"}')
    refused(cli("plan", "--context", "99", "--model", tmp_path), "num_hidden_layers")


@pytest.mark.parametrize("arguments", [(), ("nonsense",)])
def test_no_command(cli, arguments):
    refused(cli(*arguments), "COMMAND")


def test_too_little_memory(cli, folder, document, monkeypatch):
    monkeypatch.setattr("rocketkv.hf.memory.available_bytes", lambda: 1000)
    refused(cli(*GENERATE, folder, "--prompt-file", document), "GB of memory and", "are free")


def test_memory_that_runs_out(cli, folder, monkeypatch):
    def exhausted(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr("rocketkv.hf.answer.generate", exhausted)
    refused(cli(*GENERATE, folder, "--prompt", "x"), "memory ran out while")
