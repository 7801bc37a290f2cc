"""Files of key bases, one per layer and KV head: what Loki reads and `rocketkv calibrate loki` writes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from rocketkv.types import Float, Tensor

BASES, ENERGIES = "bases", "energies"
"""The tensors of a file: [layers, G, D, D] with columns by falling energy, and those energies [layers, G, D]."""
FORMAT = "rocketkv-key-bases-1"
ORTHONORMAL_TOLERANCE = 1e-3
"""Largest entry of |basis^T basis - 1| that is taken for rounding."""


def read_bases(path: str | Path) -> Float[Tensor, "layers G D D"]:
    """The bases in a safetensors file.

    Raises ValueError, in one line, if it is missing, damaged, of another kind or shape, or not orthonormal.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"key bases {path}: no such file; `rocketkv calibrate loki` makes one for a model")
    try:
        with safe_open(path, framework="pt") as file:
            if BASES not in file.keys():  # noqa: SIM118 (a file of safetensors has no other way to ask)
                raise ValueError(f"key bases {path}: it holds no tensor {BASES!r}; `rocketkv calibrate loki` makes one")
            bases = file.get_tensor(BASES)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"key bases {path} is damaged or not a safetensors file ({error}): make it again") from None
    try:
        check_bases(bases)
    except ValueError as error:
        raise ValueError(f"key bases {path}: {error}") from None
    return bases


def check_bases(bases: Tensor) -> None:
    """Raise ValueError unless `bases` is [layers, G, D, D] of orthonormal columns."""
    if bases.dim() != 4 or bases.shape[-1] != bases.shape[-2] or not bases.is_floating_point():
        shape = " x ".join(map(str, bases.shape))
        raise ValueError(f"the bases are {shape} of {bases.dtype}: layers x KV heads x D x D of floats is wanted")
    products = bases.double().transpose(-1, -2) @ bases.double()
    error = float((products - torch.eye(bases.shape[-1], dtype=torch.float64, device=bases.device)).abs().max())
    if not error <= ORTHONORMAL_TOLERANCE:  # a NaN is refused too
        raise ValueError(
            f"the bases are off orthonormal by {error:.2g}, above {ORTHONORMAL_TOLERANCE}: calibrate again"
        )


def digest(bases: Tensor) -> str:
    """A short name that two equal tensors share."""
    content = bases.detach().cpu().float().contiguous().numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:12]
