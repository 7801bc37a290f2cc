"""A model with its weights as 8-bit integers: linear layers and the embedding, one float32 scale per row."""

from __future__ import annotations

from typing import Any

import torch

from rocketkv.hf.errors import ModelError
from rocketkv.ops.dispatch import op
from rocketkv.ops.int8_linear.reference import quantise_rows

WEIGHTS = ("float", "int8")
"""How weights are held: as floats of the model's dtype, or as integers. Activations are floats in both."""


class Int8Linear(torch.nn.Module):
    """A linear layer that reads 8-bit weights. Inputs and outputs keep their dtype."""

    def __init__(self, weight: torch.nn.Parameter, scales: torch.Tensor, bias: torch.nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + bias."""
        out: torch.Tensor = op("int8_linear", "int8_linear")(x, self.weight, self.scales, self.bias)
        return out


class Int8Embedding(torch.nn.Module):
    """An embedding with 8-bit weights; its rows come out in `dtype`."""

    def __init__(self, weight: torch.nn.Parameter, scales: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        self.weight, self.dtype = weight, dtype
        self.register_buffer("scales", scales)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of the tokens `ids`."""
        scales: Any = self.scales
        return (self.weight[ids].float() * scales[ids][..., None]).to(self.dtype)


def quantise_weights(model: Any) -> Any:
    """Replace, in place, the weights of every linear layer and of the embedding by 8-bit integers; returns the model.

    For inference alone: no gradient passes.
    Weights that two layers share stay shared. Norms and biases keep their floats, and so do layers of other classes,
    such as Gemma's scaled embedding.

    Raises:
        ModelError: if the model has no linear layer of PyTorch's own class, so that nothing would change.
    """
    uses: dict[int, list[tuple[Any, str, Any]]] = {}
    for parent in model.modules():
        for name, module in parent.named_children():
            if type(module) in (torch.nn.Linear, torch.nn.Embedding):
                uses.setdefault(id(module.weight), []).append((parent, name, module))
    linear = any(type(module) is torch.nn.Linear for places in uses.values() for _, _, module in places)
    if not linear:
        raise ModelError(f"{type(model).__name__} has no linear layer to hold as int8: use weights='float'")
    while uses:
        _, places = uses.popitem()  # so that its floats are freed before the next weights are made
        dtype, (integers, scales) = places[0][2].weight.dtype, quantise_rows(places[0][2].weight)
        weight = torch.nn.Parameter(integers, requires_grad=False)
        for parent, name, module in places:
            if type(module) is torch.nn.Linear:
                setattr(parent, name, Int8Linear(weight, scales, module.bias))
            else:
                setattr(parent, name, Int8Embedding(weight, scales, dtype))
    return model


def check_weights(weights: str) -> None:
    """Raise ModelError unless `weights` is a known way to hold them."""
    if weights not in WEIGHTS:
        raise ModelError(f"unknown weights {weights!r}: choose from {', '.join(WEIGHTS)}")
