"""From a GGUF file to a folder that transformers loads in seconds: de-quantised once, kept as safetensors."""

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from rocketkv.hf import known, store
from rocketkv.hf.bars import gguf_progress, no_bars
from rocketkv.hf.errors import ModelError
from rocketkv.hf.gguf_header import GGUFHeader, read_gguf_header

Progress = Callable[[str], None]

RECORD = "rocketkv_import.json"  # in an imported folder: what it was made from
FLOAT32_BYTES = 4
# Peak memory of an import: BASE_BYTES and so many times the float32 weights. Measured: 1.16 GB for 0.54 GB of
# weights, 3.85 GB for 2.52 GB.
BASE_BYTES = 500_000_000
PEAK_MEMORY_FACTOR = 1.5
SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
# Tokens that end an answer. A chat model may name one for a turn beside the one for a text.
STOP_TOKEN_KEYS = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)


def import_model(spec: str, target: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Import a GGUF file or a model known by name, and return its folder; at once if it was imported before.

    A known model is fetched first if need be. Raises ModelError as `import_gguf` and `known.fetch` do.
    """
    model = known.KNOWN_MODELS.get(spec)
    if model is None:
        path = Path(spec).expanduser()
        if not path.is_file():
            raise ModelError(
                f"{spec} cannot be imported: neither a GGUF file nor one of {', '.join(known.KNOWN_MODELS)}"
            )
        return import_gguf(path, target, progress=progress)
    folder = target or store.imported_path(Path(model.gguf_name).stem, model.sha256)
    if _imported_sha256(folder) == model.sha256:
        return folder
    return import_gguf(known.fetch(model, progress=progress), target, progress=progress)


def import_gguf(source: Path, target: Path | None = None, *, progress: Progress | None = None) -> Path:
    """De-quantise the GGUF file `source` to float32 and keep it and its tokenizer as a folder of safetensors.

    The folder returned is `target`, or one in the user's cache named after the file and its SHA-256. It
    appears whole or not at all, and an import that is there already is returned as it is. Two processes that
    import one file do it once: the second waits. `progress` is called with a line for each step.

    Raises ModelError if the file is foreign, truncated, of an architecture or with tensors that transformers
    does not import, if it has no tokenizer, if memory or disk do not suffice, or if `target` holds something
    else.
    """
    say = progress or (lambda line: None)
    header = read_gguf_header(source)
    if "tokenizer.ggml.tokens" not in header.metadata:
        raise ModelError(f"{source} holds no tokenizer: import a GGUF file that has one")
    sha256 = store.file_sha256(source)
    target = target or store.imported_path(source.stem, sha256)
    if _imported_sha256(target) == sha256:
        return target
    store.remove_leftovers()
    with store.locked(target):
        if _imported_sha256(target) == sha256:
            return target
        _check_room(header, target)
        store.write_folder(target, lambda folder: _convert(source, sha256, header, folder, say))
    say(f"kept in {target}")
    return target


def _convert(source: Path, sha256: str, header: GGUFHeader, folder: Path, say: Progress) -> None:
    """Write everything that belongs in the imported folder."""
    say(f"reading {source.name} ({header.architecture}, {header.weights:,} weights)")
    model, tokenizer = load_gguf(source, header, progress=say)
    say("saving as safetensors")
    with no_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "source": source.name,
        "sha256": sha256,
        "transformers": metadata.version("transformers"),
        "gguf": metadata.version("gguf"),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")


def load_gguf(source: Path, header: GGUFHeader, *, progress: Progress) -> tuple[Any, Any]:
    """The model (float32, no quantisation marks) and tokenizer of a GGUF file, straight from transformers.

    Raises ModelError if transformers does not know the architecture or finds no place for a tensor.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
    try:
        with gguf_progress(progress):
            model, info = AutoModelForCausalLM.from_pretrained(
                source.parent, dtype=torch.float32, output_loading_info=True, **where, **_dequantise()
            )
            tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
    except (ValueError, NotImplementedError, ImportError) as error:
        raise ModelError(
            f"{source} (architecture {header.architecture}) cannot be imported with transformers "
            f"{metadata.version('transformers')}: {_first_line(error)}"
        ) from error
    if info["missing_keys"]:
        raise ModelError(f"{source} lacks {len(info['missing_keys'])} tensors, such as {min(info['missing_keys'])}")
    _remove_quantisation_marks(model)
    _set_special_tokens(model, tokenizer, header)
    return model, tokenizer


def _dequantise() -> dict[str, Any]:
    """The argument that asks for plain weights; before 5.24 transformers knew nothing else."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _remove_quantisation_marks(model: Any) -> None:
    """Make a de-quantised model an ordinary one: while it carries these marks it refuses to be saved."""
    model.is_quantized = False
    for owner, mark in (
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if hasattr(owner, mark):
            delattr(owner, mark)


def _set_special_tokens(model: Any, tokenizer: Any, header: GGUFHeader) -> None:
    """Take special tokens and stop tokens from the file: transformers before 5.24 takes some for others."""
    for name, key in SPECIAL_TOKENS.items():
        if key in header.metadata:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(header.metadata[key]))
    tokenizer.clean_up_tokenization_spaces = False
    stops = sorted({header.metadata[key] for key in STOP_TOKEN_KEYS if key in header.metadata})
    if stops:
        # In both places: generate may derive the generation config from the model's again.
        for config in (model.config, model.generation_config):
            config.eos_token_id = stops[0] if len(stops) == 1 else stops


def _check_room(header: GGUFHeader, target: Path) -> None:
    """Raise ModelError, with both numbers, if the import does not fit in memory or on the disk."""
    import psutil

    weights_bytes = header.weights * FLOAT32_BYTES
    memory_bytes = int(BASE_BYTES + weights_bytes * PEAK_MEMORY_FACTOR)
    available_bytes = psutil.virtual_memory().available
    if memory_bytes > available_bytes:
        raise ModelError(
            f"importing needs {memory_bytes / 1e9:.1f} GB of memory and {available_bytes / 1e9:.1f} GB are "
            f"free: take a smaller model or another machine"
        )
    existing = next(folder for folder in target.absolute().parents if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    if weights_bytes * 1.05 > free_bytes:
        raise ModelError(
            f"importing needs {weights_bytes / 1e9:.1f} GB of disk and {free_bytes / 1e9:.1f} GB are free in "
            f"{existing}: make room or set ROCKETKV_HOME to another disk"
        )


def _imported_sha256(folder: Path) -> str | None:
    """The digest of the file that `folder` was imported from, or None if it is not an imported folder."""
    record = folder / RECORD
    if not record.is_file():
        return None
    try:
        return str(json.loads(record.read_text())["sha256"])
    except (ValueError, KeyError):
        raise ModelError(f"{record} is damaged: remove {folder} and import again") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
