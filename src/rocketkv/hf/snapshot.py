"""A prompt that was read once, kept whole in memory or on disk, so that policies can start from it again and again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache, CompressedLayer
from rocketkv.policies.base import Policy


@dataclass(frozen=True)
class LayerSnapshot:
    """One layer's keys and values of the prompt [1, G, T, D] and its last queries, or the file they lie in."""

    tensors: dict[str, torch.Tensor]
    scaling: float
    path: Path | None = None

    def read(self) -> dict[str, torch.Tensor]:
        """The tensors, from wherever they are."""
        return self.tensors if self.path is None else load_file(self.path)


class PromptSnapshot:
    """Reads `input_ids` [1, T] once, evicting nothing.

    Args:
        policies: all that will start from here; they say how many of the last queries are needed.
        spill: an existing folder to write each layer to as soon as it is read; None keeps all layers in memory.
        on_prompt_layer: called with (layers done, layers) while the prompt is read.

    `logits` [1, vocabulary] are those of the last token. What a policy makes of the snapshot is what it makes of its
    own reading of the prompt, bit for bit.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Any,
        policies: Sequence[Policy],
        input_ids: torch.Tensor,
        *,
        planned_new_tokens: int = 0,
        spill: Path | None = None,
        backend: str = "auto",
        on_prompt_layer: Callable[[int, int], None] | None = None,
    ) -> None:
        if input_ids.shape[0] != 1:
            raise ValueError(f"one prompt is read for all policies: got a batch of {input_ids.shape[0]}")
        self.model, self.spill, self.prompt_tokens = model, spill, input_ids.shape[1]
        self._options = {"planned_new_tokens": planned_new_tokens, "share_prompt": True, "backend": backend}
        self._compressed: dict[int, LayerSnapshot] = {}
        reader = CompressedCache(model, policies, **self._options)  # type: ignore[arg-type]

        def layer_read(number: int, layers: int) -> None:
            self._take(number - 1, reader)
            if on_prompt_layer is not None:
                on_prompt_layer(number, layers)

        reader.on_prompt_layer = layer_read
        reader.begin_prefill(self.prompt_tokens + 1)  # one more than comes: the prompt does not end, nothing is evicted
        with attach(model):
            self.logits = model(input_ids, logits_to_keep=1, use_cache=True, **reader.kwargs).logits[:, -1]
        self._others = {n: layer for n, layer in enumerate(reader.layers) if not isinstance(layer, CompressedLayer)}

    @torch.inference_mode()
    def cache_for(self, policies: Sequence[Policy], *, keep_positions: bool = False) -> CompressedCache:
        """A new cache that has read the prompt, a row for every policy; `keep_positions` is CompressedCache's."""
        cache = CompressedCache(self.model, policies, keep_positions=keep_positions, **self._options)  # type: ignore[arg-type]
        for number, layer in enumerate(cache.layers):
            if not isinstance(layer, CompressedLayer):
                cache.layers[number] = copy.deepcopy(self._others[number])
                continue
            held = self._compressed[number]
            tensors = held.read()
            layer.is_initialized = True
            layer.state.extend(tensors["keys"], tensors["values"], None)
            if "queries" in tensors:
                layer.state.observe(tensors["queries"], None)
            layer.state.end_chunk(self.prompt_tokens, held.scaling)
        cache.give_rows()
        return cache

    def _take(self, number: int, reader: CompressedCache) -> None:
        """Move one layer out of the cache that reads."""
        state = reader.layers[number].state
        keys, values = state.columns_held()
        tensors = {"keys": keys, "values": values}
        if state.window_queries is not None:
            tensors["queries"] = state.window_queries
        scaling, path = state.scaling, None
        if self.spill is not None:
            path = self.spill / f"layer{number}.safetensors"
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
            tensors = {}
        self._compressed[number] = LayerSnapshot(tensors, scaling, path)
        state.reset()


def fork(cache: CompressedCache) -> CompressedCache:
    """A copy with memory of its own: what is appended to one is not seen by the other."""
    shared = [cache.config, *cache.states[0].given_policies]
    twin = copy.deepcopy(cache, {id(value): value for value in shared})
    twin.on_prompt_layer = None
    return twin
