"""What tells one model from another: sizes and architecture from its config, and a sample of its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from rocketkv.hf.attach import decoder_config
from rocketkv.hf.shape import shape_of

VOLATILE = (
    "_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "_attn_implementation_autoset",
    "use_cache", "output_attentions", "output_hidden_states", "return_dict", "bos_token_id", "eos_token_id",
    "pad_token_id", "max_length", "tie_word_embeddings",
)  # fmt: skip
"""Fields of a config that do not change what a cache holds."""
SAMPLE = 8
"""Numbers of each weight that are looked at, from its beginning and from its end."""


def fingerprint(model: Any) -> dict[str, Any]:
    """Architecture, sizes, dtype, a digest of the rest of the config and one of a sample of the weights."""
    config, shape = decoder_config(model), shape_of(model.config)
    kept = {key: value for key, value in config.to_dict().items() if key not in VOLATILE}
    return {
        "architecture": config.model_type,
        "layers": shape.layers,
        "full_layers": shape.full_layers,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden": shape.hidden,
        "dtype": str(model.dtype).removeprefix("torch."),
        "config": _digest(json.dumps(kept, sort_keys=True, default=str).encode()),
        "weights": weights_digest(model),
    }


@torch.inference_mode()
def weights_digest(model: Any) -> str:
    """A digest of every weight's name, shape and a few of its numbers: it tells a fine-tuned model from its base."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        flat = weight.detach().reshape(-1)
        sample = torch.cat([flat[:SAMPLE], flat[-SAMPLE:]]).float().cpu()
        digest.update(f"{name}{tuple(weight.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def difference(saved: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """The first thing in which two fingerprints differ, in words; None if they are the same."""
    for key, value in saved.items():
        other = found.get(key)
        if value != other:
            return f"{key} {value} there, {other} here"
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
