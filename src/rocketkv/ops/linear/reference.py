"""A linear layer whose weights are stored as floats, or as 8-bit integers with one scale per output."""

from __future__ import annotations

import torch

from rocketkv.types import Float, Int, Tensor

LARGEST = 127
"""Integers lie in -127 to 127, so that the range is symmetric."""


def quantise_rows(weights: Float[Tensor, "O I"]) -> tuple[Int[Tensor, "O I"], Float[Tensor, "O"]]:
    """The nearest integers and float32 scales: row o is about `integers[o] * scales[o]`, within half a scale."""
    exact = weights.detach().float()
    scales = exact.abs().amax(1) / LARGEST
    integers = (exact / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return integers.to(torch.int8), scales


def linear(
    x: Float[Tensor, "*n I"],
    weights: Float[Tensor, "O I"] | Int[Tensor, "O I"],
    scales: Float[Tensor, "O"] | None = None,
    bias: Float[Tensor, "O"] | None = None,
) -> Float[Tensor, "*n O"]:
    """x W^T + bias in x's dtype, accumulated in float32 or better. With `scales`, W is integers times scales.

    Activations are not quantised.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    out = x.to(dtype) @ weights.to(dtype).T
    if scales is not None:
        out = out * scales.to(dtype)
    return (out if bias is None else out + bias.to(dtype)).to(x.dtype)
