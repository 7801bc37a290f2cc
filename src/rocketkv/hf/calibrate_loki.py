"""Loki's calibration: the principal components of a model's rotated keys, from a text that the user gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers.cache_utils import DynamicCache, DynamicLayer

from rocketkv import __version__
from rocketkv.hf.attach import decoder_config
from rocketkv.hf.compat import CACHE_ARGUMENT
from rocketkv.hf.errors import CalibrationError, UnsupportedModelError
from rocketkv.hf.shape import shape_of
from rocketkv.hf.store import locked, write_file
from rocketkv.policies.key_bases import BASES, ENERGIES, FORMAT
from rocketkv.types import Float, Tensor

FILE_NAME = "loki.safetensors"
CHUNK_TOKENS = 2048
LEAST_TOKENS_PER_DIMENSION = 2
"""Fewer tokens than this times D leave the components to chance."""


@dataclass(frozen=True)
class KeyComponents:
    """Per compressed layer and KV head an orthonormal basis, columns by falling energy (mean square), and those."""

    bases: Float[Tensor, "layers G D D"]
    energies: Float[Tensor, "layers G D"]
    tokens: int

    def captured(self, rank: int) -> Float[Tensor, "layers G"]:
        """Share of the energy that the `rank` leading dimensions hold."""
        return self.energies[..., :rank].sum(-1) / self.energies.sum(-1).clamp(min=torch.finfo(torch.float64).tiny)


class Moments:
    """Sums of D x D products of the keys of every layer and KV head, in float64; no T x T matrix is formed."""

    def __init__(self) -> None:
        self.tokens = 0
        self.products: list[Tensor] = []

    def add(self, keys: list[Float[Tensor, "G C D"]]) -> None:
        """Take the keys of all layers for the same tokens."""
        if not self.products:
            self.products = [k.new_zeros(k.shape[0], k.shape[2], k.shape[2], dtype=torch.float64) for k in keys]
        self.tokens += keys[0].shape[1]
        for k, products in zip(keys, self.products, strict=True):
            products += k.double().transpose(1, 2) @ k.double()

    def components(self) -> KeyComponents:
        """Eigenvectors of the second moments.

        Keys are not centred, although a vector that all keys share moves all logits of a query alike: the leading
        dimension then also tells apart the few tokens that lack it, such as the first one, which draw most attention
        and are too rare to weigh in a covariance (docs/decisions/0007).
        """
        energies, vectors = torch.linalg.eigh(torch.stack(self.products) / self.tokens)
        energies, vectors = energies.flip(-1).clamp(min=0), vectors.flip(-1)
        # A component's sign is free: its largest entry is made positive, so that twice gives the same file.
        largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
        return KeyComponents(vectors * largest.sign(), energies, self.tokens)


@torch.inference_mode()
def calibrate_loki(
    model: Any,
    ids: list[int],
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    on_chunk: Callable[[int, int], None] | None = None,
) -> KeyComponents:
    """Principal components of the keys, after rotation, of every full-attention layer and KV head.

    Args:
        ids: the text's tokens; at least twice the head size.
        chunk_tokens: read at once, each chunk from position 0 on, so that only those positions are seen; cut to the
            model's context.
        on_chunk: called with (tokens read, tokens) after each chunk.

    Raises CalibrationError for a text that is too short, UnsupportedModelError for a model without full attention.
    """
    shape = shape_of(model.config)
    if len(ids) < LEAST_TOKENS_PER_DIMENSION * shape.head_dim:
        raise CalibrationError(
            f"the text has {len(ids)} tokens, and {LEAST_TOKENS_PER_DIMENSION * shape.head_dim} are the least for "
            f"keys of size {shape.head_dim}: give a longer text, 10,000 tokens or more"
        )
    chunk_tokens = min(chunk_tokens, shape.context_tokens or chunk_tokens)
    moments = Moments()
    for start in range(0, len(ids), chunk_tokens):
        chunk = torch.tensor([ids[start : start + chunk_tokens]], device=model.device)
        cache = DynamicCache(config=decoder_config(model))
        model(chunk, use_cache=True, logits_to_keep=1, **{CACHE_ARGUMENT: cache})
        keys = [layer.keys[0] for layer in cache.layers if type(layer) is DynamicLayer]
        if not keys:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no full-attention layer: there is nothing to calibrate"
            )
        moments.add(keys)
        if on_chunk is not None:
            on_chunk(min(start + chunk_tokens, len(ids)), len(ids))
    return moments.components()


def save_components(found: KeyComponents, path: Path, *, model_name: str, text: str) -> None:
    """Write a file that `Loki.load_bases` reads, whole or not at all. Raises ModelError or OSError if it cannot be."""
    tensors = {BASES: found.bases.float().contiguous().cpu(), ENERGIES: found.energies.contiguous().cpu()}
    facts = {
        "format": FORMAT,
        "rocketkv": __version__,
        "model": model_name,
        "text_sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
        "tokens": str(found.tokens),
        "centred": "false",
    }
    with locked(path):
        write_file(path, iter([save(tensors, metadata=facts)]))
