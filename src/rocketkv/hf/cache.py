"""A transformers cache whose full-attention layers are compressed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from rocketkv.cache.layer import LayerCache
from rocketkv.cache.observer import Observer
from rocketkv.cache.report import CacheReport, report_of
from rocketkv.hf.attach import check_model, decoder_config, is_attached
from rocketkv.hf.compat import CACHE_ARGUMENT, hand_over
from rocketkv.hf.errors import NotAttachedError, UnsupportedModelError
from rocketkv.policies.base import Policy


class CompressedLayer(CacheLayerMixin):
    """One full-attention layer. `update` hands the layer over; the attention function does the work.

    Reports the logical length (tokens seen, padding included), not the stored one: positions follow from it.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, state: LayerCache, number: int, layers: int) -> None:
        super().__init__()
        self.state = state
        self.number, self.layers = number, layers
        # Held here, not in the cache: a way back to it would keep a dropped cache alive until the next collection.
        self.on_prompt_layer: Callable[[int, int], None] | None = None
        self.waiting = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.waiting:
            raise NotAttachedError(
                "the model did not use the compressed cache it was given: call it inside rocketkv.attach"
            )
        self.is_initialized = True
        self.waiting = True
        hand_over(self, key_states, kwargs.get("kwargs"))
        return key_states, value_states

    def take(self) -> LayerCache:
        """The state, for the attention function that was handed this layer."""
        self.waiting = False
        return self.state

    def prompt_read(self) -> None:
        """Tell who listens that this layer has read its part of a prompt."""
        if self.on_prompt_layer is not None:
            self.on_prompt_layer(self.number + 1, self.layers)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # A whole layer is masked by the model's own mask; a ragged one needs to know its new columns alone.
        if self.state.whole:
            return self.state.columns + query_length, 0
        return query_length, self.state.columns

    def get_seq_length(self) -> int:
        return self.state.columns

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.state.reset()
        self.is_initialized = self.waiting = False

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.state.select_rows(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.state.select_rows(torch.arange(len(self.state.policies)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.state.select_rows(indices)

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            raise ValueError(
                "a compressed cache cannot be cropped: evicted tokens do not come back; start from a new cache"
            )


class CompressedCache(Cache):
    """The cache of one batch under a policy. Use it while the model is attached.

    For inference: through steps that run CPU or Triton kernels no gradient passes.

    Args:
        model: a decoder-only transformers model.
        policy: one for all rows, or one for each row of the batch.
        planned_new_tokens: N of the plan: a generation length the caller plans for; 0 unless given. No stop limit.
        share_prompt: the first prompt is read once, as a batch of one; at its end every policy gets a row of its own.
        keep_positions: note which token of its row each stored one is, for diagnostics (8 bytes per token and KV head).
        backend: which implementation of the ops runs ("auto", "reference", "cpu", "triton").

    Raises:
        UnsupportedModelError: for a model whose attention cannot be compressed, by name.
    """

    def __init__(
        self,
        model: Any,
        policy: Policy | Sequence[Policy],
        *,
        planned_new_tokens: int = 0,
        share_prompt: bool = False,
        keep_positions: bool = False,
        backend: str = "auto",
    ) -> None:
        check_model(model)
        if planned_new_tokens < 0:
            raise ValueError(
                f"planned_new_tokens={planned_new_tokens} is below 0: give the number of tokens to plan for"
            )
        policies = (policy,) if isinstance(policy, Policy) else tuple(policy)
        if not policies:
            raise ValueError("no policy was given: give one, or one for each row of the batch")
        self.config = decoder_config(model)
        self.model = weakref.ref(model)
        """The model that the cache was made for, while it lives."""
        layers = DynamicCache(config=self.config).layers
        full = [number for number, layer in enumerate(layers) if type(layer) is DynamicLayer]
        if not full:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no full-attention layer: there is nothing to compress"
            )
        for place, number in enumerate(full):
            state = LayerCache(
                policies,
                layer=place,
                layers=len(full),
                planned_new_tokens=planned_new_tokens,
                share_prompt=share_prompt,
                keep_positions=keep_positions,
                backend=backend,
            )
            layers[number] = CompressedLayer(state, number, len(layers))
        super().__init__(layers=layers)
        self.states = [layers[number].state for number in full]
        """The compressed layers' caches, in order."""

    @property
    def on_prompt_layer(self) -> Callable[[int, int], None] | None:
        """Called with (layers done, layers of the model) after each compressed layer of a prompt's forward."""
        return next(layer for layer in self.layers if isinstance(layer, CompressedLayer)).on_prompt_layer

    @on_prompt_layer.setter
    def on_prompt_layer(self, listener: Callable[[int, int], None] | None) -> None:
        for layer in self.layers:
            if isinstance(layer, CompressedLayer):
                layer.on_prompt_layer = listener

    @property
    def kwargs(self) -> dict[str, Any]:
        """The cache under the name that this transformers version uses: `model.generate(**cache.kwargs)`."""
        return {CACHE_ARGUMENT: self}

    def begin_prefill(self, total_tokens: int) -> None:
        """Announce a prompt of `total_tokens` columns in several forwards; eviction waits for its end."""
        if total_tokens < 1:
            raise ValueError(f"total_tokens={total_tokens} is below 1: give the columns of the whole prompt")
        for state in self.states:
            state.announced_columns = total_tokens

    def give_rows(self) -> None:
        """After a shared prompt: the layers that are not compressed get a row for every policy too."""
        for layer in self.layers:
            if not isinstance(layer, CompressedLayer):
                layer.batch_repeat_interleave(len(self.states[0].policies))

    def observe_steps(self, observer: Observer | None) -> None:
        """Show every decode step of every compressed layer to `observer`; None ends that."""
        for state in self.states:
            state.observer = observer

    def report(self) -> CacheReport:
        """Tokens seen and kept, bytes held, bytes a full cache would hold, bytes read per step, and counters."""
        return report_of(self.states)

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if not is_attached(self.config):
            raise NotAttachedError(
                "the model is not attached, so it would ignore the compression: call it inside rocketkv.attach"
            )
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def activate_past_recording(self) -> None:
        raise ValueError(
            "assisted decoding (assistant_model, prompt_lookup_num_tokens) takes tokens back, and an evicted token "
            "does not come back: generate without it, or with the model's own cache"
        )
