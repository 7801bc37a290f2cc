"""`rocketkv generate`: what it prints, and that it is what the library computes."""

import io
import json
import sys

import pytest

from rocketkv import RocketKV, generate, load_model

KEYS = [
    "text", "prompt_tokens", "new_tokens", "policy", "plan", "cache_bytes", "full_cache_bytes", "prefill_s",
    "decode_tokens_per_s",
]  # fmt: skip
ROCKET = ("--policy", "rocketkv", "--budget", "64", "--max-new-tokens", "6")


def test_json_is_one_object_with_stable_keys(cli, folder, document):
    result = cli("generate", "--model", folder, "--prompt-file", document, *ROCKET, "--json")
    answer = json.loads(result.out)
    assert result.code == 0
    assert result.err == ""
    assert result.out.count("\n") == 1
    assert list(answer) == KEYS
    assert list(answer["plan"]) == ["kept_tokens", "page_tokens", "rank", "read_tokens"]
    assert answer["policy"] == "rocketkv"
    assert answer["new_tokens"] == 6
    assert answer["plan"]["read_tokens"] == 32
    assert answer["plan"]["kept_tokens"] < answer["prompt_tokens"]
    assert answer["full_cache_bytes"] == (answer["prompt_tokens"] + 5) * 2 * 2 * 16 * 4
    assert answer["prefill_s"] > 0
    assert answer["decode_tokens_per_s"] > 0


def test_the_text_is_what_the_library_generates(cli, folder, document):
    result = cli("generate", "--model", folder, "--prompt-file", document, *ROCKET)
    model, tokenizer = load_model(str(folder))
    chat = [{"role": "user", "content": document.read_text()}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = generate(model, RocketKV(budget_tokens=64), **inputs, max_new_tokens=6, do_sample=False)
    text = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert result.out == text + "\n"


def test_the_report_goes_to_standard_error(cli, folder, document):
    result = cli("generate", "--model", folder, "--prompt-file", document, *ROCKET)
    first, second = result.err.splitlines()[:2]
    assert first.startswith("rocketkv: 319 prompt tokens, 6 new; kept ")
    assert "% of a full one's" in second
    assert "tokens/s" in second


def test_a_dense_plan_says_so(cli, folder):
    arguments = ("generate", "--model", folder, "--prompt", "short", "--budget", 256, "--max-new-tokens", 2)
    assert "nothing was evicted" in cli(*arguments).err
    assert "every step was dense" in cli(*arguments).err
    assert "selection began" in cli(*arguments[:-4], "--budget", 30, "--max-new-tokens", 20).err


def test_one_token_has_no_decode_rate(cli, folder):
    arguments = ("generate", "--model", folder, "--prompt", "x", "--max-new-tokens", 1, "--json")
    answer = json.loads(cli(*arguments).out)
    assert answer["new_tokens"] == 1
    assert answer["decode_tokens_per_s"] is None


def test_the_prompt_from_standard_input(cli, folder, document, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(document.read_bytes())))
    piped = cli("generate", "--model", folder, "--prompt-file", "-", *ROCKET)
    assert piped.out == cli("generate", "--model", folder, "--prompt-file", document, *ROCKET).out


def test_sampling_repeats_for_a_seed(cli, folder):
    def text(temperature: float, seed: int) -> str:
        arguments = ("generate", "--model", folder, "--prompt", "once", "--max-new-tokens", 24, "--json")
        return json.loads(cli(*arguments, "--temperature", temperature, "--seed", seed).out)["text"]

    assert text(3.0, 1) == text(3.0, 1) != text(3.0, 2)
    assert text(0, 1) == text(0, 2)


def test_an_answer_stops_at_the_context(cli, folder):
    """A prompt as long as the context still gets one token, and no warning from elsewhere."""
    arguments = ("generate", "--model", folder, "--max-new-tokens", 50, "--prompt")
    frame = json.loads(cli(*arguments, "x", "--json").out)["prompt_tokens"] - 1
    result = cli(*arguments, "x" * (512 - frame), "--json")
    assert json.loads(result.out)["new_tokens"] == 1
    assert "leaves room for 3 new tokens" in cli(*arguments, "x" * (510 - frame)).err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype(cli, folder, document, dtype):
    arguments = (
        "generate",
        "--model",
        folder,
        "--prompt-file",
        document,
        *ROCKET,
        "--json",
        "--dtype",
        dtype,
    )
    answer = json.loads(cli(*arguments).out)
    assert answer["full_cache_bytes"] == (319 + 5) * 2 * 2 * 16 * (4 if dtype == "float32" else 2)


def test_options_reach_the_policy(cli, folder, document):
    arguments = ("generate", "--model", folder, "--prompt-file", document, *ROCKET, "--json")
    kept = [json.loads(cli(*arguments, "--set", f"split={split}").out)["plan"]["kept_tokens"] for split in (0, 0.5, 1)]
    assert kept[0] == 319
    assert kept[0] > kept[1] > kept[2] == 64
    planned = json.loads(cli(*arguments, "--planned-new-tokens", 100).out)
    assert planned["plan"]["kept_tokens"] != json.loads(cli(*arguments).out)["plan"]["kept_tokens"]


def test_a_bug_is_not_dressed_as_bad_input(cli, folder, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("rocketkv.commands.running.prompt_ids", broken)
    with pytest.raises(KeyError, match="a bug"):
        cli("generate", "--model", folder, "--prompt", "x")


def test_a_value_error_inside_the_model_is_a_bug(cli, folder, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("rocketkv.hf.answer.generate", broken)
    with pytest.raises(ValueError, match="a bug"):
        cli("generate", "--model", folder, "--prompt", "x")
