"""Saved contexts: the cache of a prompt that was read once, kept on disk, and taken up again by the same model.

A folder holds `tensors.safetensors` and `context.json`. It appears whole or not at all, and is checked when loaded.
Generation goes on from a loaded cache bit for bit as from the live one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rocketkv import __version__
from rocketkv.cache.saved import layer_state, restore_layer
from rocketkv.hf.cache import CompressedCache, CompressedLayer
from rocketkv.hf.fingerprint import difference, fingerprint
from rocketkv.hf.store import file_sha256, locked, write_folder
from rocketkv.policies.base import Policy
from rocketkv.policies.saved import from_spec, to_spec

FORMAT = "rocketkv-context-1"
FACTS_NAME, TENSORS_NAME = "context.json", "tensors.safetensors"


class ContextError(ValueError):
    """A context cannot be saved or loaded; the message says why and the way out."""


def save_context(cache: CompressedCache, folder: str | Path) -> None:
    """Write what `cache` holds into `folder`, which must not exist or be empty. The cache stays as it is.

    Raises:
        ContextError: before a prompt has been read or in the middle of one, for a policy that is not in the registry,
            and if the folder holds something or the model is gone.
    """
    folder = Path(folder)
    model = cache.model()
    if model is None:
        raise ContextError(
            "the model of this cache is gone, so that its context could not be told from others: keep it"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ContextError(f"{folder} exists already: give a new folder")
    try:
        tensors, facts = _state(cache)
    except ValueError as error:
        raise ContextError(f"this context cannot be saved: {error}") from None
    facts = {
        "format": FORMAT,
        "rocketkv": __version__,
        "transformers": metadata.version("transformers"),
        "model": fingerprint(model),
        **facts,
    }

    def write(partial: Path) -> None:
        plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(plain, partial / TENSORS_NAME)
        facts["tensors_sha256"] = file_sha256(partial / TENSORS_NAME)
        (partial / FACTS_NAME).write_text(json.dumps(facts | {"sha256": _digest(facts)}, indent=1), encoding="utf-8")

    with locked(folder):
        if folder.is_dir():
            folder.rmdir()
        write_folder(folder, write)


def load_context(model: Any, folder: str | Path, *, backend: str = "auto") -> CompressedCache:
    """The cache that was saved in `folder`, on the model's device, ready to go on.

    Raises:
        ContextError: if the folder is missing, incomplete or damaged, of another version, or of another model.
    """
    folder = Path(folder)
    facts = _read_facts(folder)
    if (told := difference(facts["model"], fingerprint(model))) is not None:
        raise ContextError(f"{folder} was saved by another model ({told}): load it with the model that read it")
    tensors = _read_tensors(folder, facts["tensors_sha256"], str(model.device))
    try:
        policies = [from_spec(spec, _part("policies", tensors)) for spec in facts["policies"]]
        cache = CompressedCache(model, _picked(policies, facts["given"]), backend=backend, **facts["options"])
        for number, layer in enumerate(cache.layers):
            mine, told_of = _part(f"layers.{number}", tensors), facts["layers"][number]
            if isinstance(layer, CompressedLayer):
                restore_layer(layer.state, _picked(policies, facts["rows"]), mine, told_of)
                layer.is_initialized = True
            else:
                _restore_foreign(layer, mine, told_of, model.device)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ContextError(f"{folder} does not fit this version of rocketkv ({__version__}): {error}") from error
    return cache


def _state(cache: CompressedCache) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors by name, and everything else as values for JSON."""
    first = cache.states[0]
    distinct = list(dict.fromkeys((*first.given_policies, *first.policies)))
    bases: dict[str, Tensor] = {}
    facts: dict[str, Any] = {
        "options": {
            "planned_new_tokens": first.planned_new_tokens,
            "share_prompt": first.share_prompt,
            "keep_positions": first.keep_positions,
        },
        "policies": [to_spec(policy, bases) for policy in distinct],
        "given": [distinct.index(policy) for policy in first.given_policies],
        "rows": [distinct.index(policy) for policy in first.policies],
        "layers": [],
    }
    tensors = {f"policies.{name}": tensor for name, tensor in bases.items()}
    for number, layer in enumerate(cache.layers):
        mine, told = layer_state(layer.state) if isinstance(layer, CompressedLayer) else _foreign_state(layer)
        tensors |= {f"layers.{number}.{name}": tensor for name, tensor in mine.items()}
        facts["layers"].append(told)
    return tensors, facts


def _foreign_state(layer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The attributes of a layer of transformers' own. Raises ValueError for one that is no plain value."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {"class": type(layer).__name__, "dtypes": {}, "devices": [], "values": {}}
    for name, value in vars(layer).items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, torch.dtype):
            facts["dtypes"][name] = str(value).removeprefix("torch.")
        elif isinstance(value, torch.device):
            facts["devices"].append(name)
        elif value is None or isinstance(value, bool | int | float | str):
            facts["values"][name] = value
        else:
            raise ValueError(f"a {type(layer).__name__} holds {name}, a {type(value).__name__}, which is not supported")
    return tensors, facts


def _restore_foreign(layer: Any, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], device: Any) -> None:
    if type(layer).__name__ != facts["class"]:
        raise ValueError(
            f"a layer is a {type(layer).__name__} in this version of transformers, it was a {facts['class']}"
        )
    dtypes = {name: getattr(torch, dtype) for name, dtype in facts["dtypes"].items()}
    devices = dict.fromkeys(facts["devices"], device)
    for name, value in {**tensors, **dtypes, **devices, **facts["values"]}.items():
        setattr(layer, name, value)


def _picked(policies: list[Policy], numbers: list[int]) -> tuple[Policy, ...]:
    return tuple(policies[number] for number in numbers)


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under a name, without it."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(prefix + ".")}


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS_NAME
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        digest = facts.pop("sha256")
    except OSError as error:
        raise ContextError(
            f"{folder} is no saved context ({path.name}: {error.strerror}): give a folder that save_context made"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ContextError(f"{path} is damaged: save the context again") from None
    if facts.get("format") != FORMAT:
        raise ContextError(f"{path} is of format {facts.get('format')!r}, this version reads {FORMAT!r}: save it again")
    if _digest(facts) != digest:
        raise ContextError(f"{path} is damaged, its checksum differs: save the context again")
    return facts


def _read_tensors(folder: Path, sha256: str, device: str) -> dict[str, Tensor]:
    path = folder / TENSORS_NAME
    try:
        if file_sha256(path) != sha256:
            raise ContextError(f"{path} is damaged or incomplete, its checksum differs: save the context again")
        return load_file(path, device=device)
    except OSError as error:
        raise ContextError(f"{path} cannot be read: {error.strerror}; save the context again") from None
    except SafetensorError as error:
        raise ContextError(f"{path} is damaged ({error}): save the context again") from None


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
