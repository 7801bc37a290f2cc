"""Loading a model and its tokenizer, from wherever the user keeps them."""

import difflib
import json
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rocketkv.hf import importing, known
from rocketkv.hf.bars import no_bars
from rocketkv.hf.errors import ModelError
from rocketkv.hf.gguf_header import MAGIC
from rocketkv.hf.weights import check_weights, hold_weights

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def load_model(
    spec: str,
    *,
    dtype: torch.dtype = torch.float32,
    attn: str | None = None,
    weights: str = "float",
    progress: Callable[[str], None] | None = None,
) -> tuple[Any, Any]:
    """Load a causal language model, ready to generate, and its tokenizer.

    `spec` is a folder with config.json and weights, a GGUF file (imported at its first use), a hub id of the
    form owner/name, or a name in KNOWN_MODELS. `attn` is the attention implementation in transformers' words,
    its own choice if None. With `weights="streamed"` few rows read the same weights by our kernel,
    at the memory's rate on a CPU; with "int8" linear layers and embedding are held as 8-bit integers, while
    activations and cache keep `dtype` (`hf.weights`). Raises ModelError, in one line with the way out,
    if there is no such model, if its files are missing, damaged or incomplete, or if transformers does not know
    its architecture.
    """
    check_weights(weights)
    path = _local_path(spec, progress)
    model, tokenizer = _from_pretrained(str(path or spec), path is not None, dtype, attn)
    return hold_weights(model, weights), tokenizer


def hub_is_out_of_reach() -> bool:
    """Whether the model hub cannot be asked at all; what is in its local cache can be loaded even so.

    Found out by resolving the hub's name, since the hub's client retries for half a minute.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    if urllib.request.getproxies():
        return False
    try:
        socket.getaddrinfo(urllib.parse.urlsplit(constants.ENDPOINT).hostname, 443)
    except socket.gaierror:
        return True
    return False


def _local_path(spec: str, progress: Callable[[str], None] | None) -> Path | None:
    """The checked folder that `spec` stands for, None for a hub id. Raises ModelError for anything else."""
    if spec in known.KNOWN_MODELS:
        return importing.import_model(spec, progress=progress)
    path = Path(spec).expanduser()
    if path.is_file():
        if path.suffix != ".gguf" and not _begins_with(path, MAGIC):
            raise ModelError(f"{spec} is a file, but not a GGUF file: give a model folder or a .gguf file")
        return importing.import_gguf(path, progress=progress)
    if path.is_dir():
        check_folder(path)
        return path
    if spec.startswith((".", "~", "/")) or spec.endswith(".gguf") or spec.count("/") > 1:
        raise ModelError(f"{spec} does not exist: no such folder or file")
    if "/" not in spec:
        near = difflib.get_close_matches(spec.lower(), known.KNOWN_MODELS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known names: {', '.join(known.KNOWN_MODELS)};"
        raise ModelError(f"unknown model {spec!r}: {hint} A folder, a .gguf file or a hub id (owner/name) will do too")
    return None


def check_folder(folder: Path) -> None:
    """Check that a model folder has a config and whole weights. Raises ModelError saying what is missing."""
    if not (folder / "config.json").is_file():
        inside = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"give the GGUF file in it: {folder / inside[0]}" if inside else "give the folder that has one"
        raise ModelError(f"{folder} is not a model folder, it has no config.json: {hint}")
    for name in WEIGHT_FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return _check_shards(folder, [name])
        if index.is_file():
            return _check_shards(folder, _shards(index))
    raise ModelError(f"{folder} has no weights: {' or '.join(WEIGHT_FILES)}, or an index of one, is needed")


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError):
        raise ModelError(f"{index} is damaged: it does not say in which file each weight is") from None


def _check_shards(folder: Path, names: list[str]) -> None:
    from safetensors import SafetensorError, safe_open

    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} of {len(names)} weight files, such as {missing[0]}")
    for name in names:
        if name.endswith(".safetensors"):
            try:
                with safe_open(folder / name, framework="pt"):
                    pass
            except SafetensorError as error:
                raise ModelError(f"{folder / name} is damaged or incomplete ({error}): fetch it again") from None


def _from_pretrained(name: str, local: bool, dtype: torch.dtype, attn: str | None) -> tuple[Any, Any]:
    """Load by transformers, the cheap parts first, and turn what it raises into ModelError."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local or hub_is_out_of_reach()}
    implementation = {} if attn is None else {"attn_implementation": attn}
    stage = "config"
    try:
        config = AutoConfig.from_pretrained(name, **options)
        stage = "tokenizer"
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        stage = "model"
        with no_bars():
            model, info = AutoModelForCausalLM.from_pretrained(
                name, config=config, dtype=dtype, output_loading_info=True, **implementation, **options
            )
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(_failure(name, stage, local, error)) from error
    if info["missing_keys"]:
        lacking = sorted(info["missing_keys"])
        raise ModelError(
            f"{name} lacks {len(lacking)} of its weights, such as {lacking[0]}: the download is incomplete"
        )
    return model.eval(), tokenizer


def _failure(name: str, stage: str, local: bool, error: Exception) -> str:
    """One line on why transformers could not load the `stage` of model `name`."""
    cause = " ".join(str(error).split())[:300]
    if not local and isinstance(error, OSError):
        return (
            f"{name} is neither a folder here nor a model that the hub gives to this machine: check the name "
            f"or, without a network, give a folder, a GGUF file or smollm2 ({cause.split('. ')[0]})"
        )
    return f"the {stage} of {name} cannot be loaded: {cause}"


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
