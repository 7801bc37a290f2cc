"""A model whose weights a decode step reads at the memory's rate: as they are, or as 8-bit integers with scales."""

from __future__ import annotations

from typing import Any

import torch

from rocketkv.hf.errors import ModelError
from rocketkv.hf.large_pages import LargePages
from rocketkv.ops.dispatch import op
from rocketkv.ops.linear.reference import quantise_rows

WEIGHTS = ("float", "streamed", "int8")
"""How weights are held: as floats of the model's dtype and read by PyTorch, the same floats read by our kernel, or as
integers. Activations are floats in all."""

_linear = op("linear", "linear")


class StreamedLinear(torch.nn.Module):
    """A linear layer that reads weights as they are stored; 8-bit ones with `scales`. Outputs keep x's dtype."""

    def __init__(
        self, weight: torch.nn.Parameter, scales: torch.Tensor | None, bias: torch.nn.Parameter | None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.register_parameter("bias", bias)
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + bias."""
        held = self._parameters  # not by attribute: a module looks those up in Python
        out: torch.Tensor = _linear(x, held["weight"], self._buffers["scales"], held["bias"])
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


def stream_weights(model: Any) -> Any:
    """Let, in place, every linear layer read its weights by our kernel, the same numbers; returns the model.

    For inference alone: no gradient passes. Weights that two layers share stay shared. An embedding of its own stays
    as it is, since a step reads one row of it, and so do layers of other classes.

    Raises:
        ModelError: if the model has no linear layer of PyTorch's own class, so that nothing would change.
    """
    return _replace(model, "streamed")


def quantise_weights(model: Any) -> Any:
    """Replace, in place, the weights of every linear layer and of the embedding by 8-bit integers; returns the model.

    For inference alone: no gradient passes.
    Weights that two layers share stay shared. Norms and biases keep their floats, and so do layers of other classes,
    such as Gemma's scaled embedding.

    Raises:
        ModelError: if the model has no linear layer of PyTorch's own class, so that nothing would change.
    """
    return _replace(model, "int8")


def _replace(model: Any, way: str) -> Any:
    uses = _uses(model)
    if not any(_is_linear(module) for places in uses for _, _, module in places):
        raise ModelError(f"{type(model).__name__} has no linear layer to hold as {way}: use weights='float'")
    if way == "streamed":
        uses = [places for places in uses if any(_is_linear(module) for _, _, module in places)]
    weights = [places[0][2].weight for places in uses]
    memory = LargePages((weight.numel(), torch.int8 if way == "int8" else weight.dtype) for weight in weights)
    del weights
    while uses:
        places = uses.pop()  # so that its floats are freed before the next weights are made
        old = places[0][2].weight
        numbers, scales = quantise_rows(old) if way == "int8" else (old, None)
        weight = torch.nn.Parameter(memory.copy(numbers), requires_grad=False)
        for parent, name, module in places:
            if _is_linear(module):
                setattr(parent, name, StreamedLinear(weight, scales, module.bias))
            elif scales is not None:
                setattr(parent, name, Int8Embedding(weight, scales, old.dtype))
            else:
                module.weight = weight
    return model


def _uses(model: Any) -> list[list[tuple[Any, str, Any]]]:
    """For every weight of a linear layer or an embedding, the modules that use it: parent, name, module."""
    uses: dict[int, list[tuple[Any, str, Any]]] = {}
    for parent in model.modules():
        for name, module in parent.named_children():
            if type(module) in (torch.nn.Linear, torch.nn.Embedding):
                uses.setdefault(id(module.weight), []).append((parent, name, module))
    return list(uses.values())


def _is_linear(module: Any) -> bool:
    return type(module) is torch.nn.Linear


def hold_weights(model: Any, weights: str) -> Any:
    """The model with its weights held in one of the ways in WEIGHTS."""
    check_weights(weights)
    if weights == "float":
        return model
    return stream_weights(model) if weights == "streamed" else quantise_weights(model)


def check_weights(weights: str) -> None:
    """Raise ModelError unless `weights` is a known way to hold them."""
    if weights not in WEIGHTS:
        raise ModelError(f"unknown weights {weights!r}: choose from {', '.join(WEIGHTS)}")
