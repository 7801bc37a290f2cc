"""The sizes of a model that memory and time follow from, read off its config."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketkv.hf.errors import ModelError


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. `full_layers` attend to everything; the others to `sliding_tokens` at most."""

    layers: int
    full_layers: int
    sliding_tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    context_tokens: int | None

    @property
    def group_size(self) -> int:
        """R: query heads per KV head."""
        return self.heads // self.kv_heads


def shape_of(config: Any) -> ModelShape:
    """The shape of a transformers config (of its text part). Raises ModelError if it does not say."""
    text = config.get_text_config(decoder=True)
    return _shape(lambda name: getattr(text, name, None), type(config).__name__)


def shape_in_folder(folder: Path) -> ModelShape:
    """The shape that `config.json` in a folder tells; no more is read. Raises ModelError if it does not."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a model folder, it has no config.json: give the folder that has one")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values = values.get("text_config", values)
        get = values.get
    except (ValueError, AttributeError):
        raise ModelError(f"{path} is damaged: it is not a JSON object") from None
    return _shape(get, str(path))


def _shape(get: Callable[[str], Any], source: str) -> ModelShape:
    layers, heads, hidden = get("num_hidden_layers"), get("num_attention_heads"), get("hidden_size")
    if not all(isinstance(value, int) and value > 0 for value in (layers, heads, hidden)):
        raise ModelError(f"{source} does not give num_hidden_layers, num_attention_heads and hidden_size as numbers")
    full, window = _attention_layers(get, layers)
    return ModelShape(
        layers=layers,
        full_layers=full,
        sliding_tokens=window,
        heads=heads,
        kv_heads=get("num_key_value_heads") or heads,
        head_dim=get("head_dim") or hidden // heads,
        hidden=hidden,
        intermediate=get("intermediate_size") or 4 * hidden,
        context_tokens=get("max_position_embeddings"),
    )


def _attention_layers(get: Callable[[str], Any], layers: int) -> tuple[int, int]:
    """How many layers attend to everything, and how many tokens the others see."""
    window = get("sliding_window")
    if kinds := get("layer_types"):
        return sum(kind == "full_attention" for kind in kinds), window or 0
    if window and (pattern := get("sliding_window_pattern")):
        return layers // pattern, window
    if window and get("use_sliding_window") is not False:
        return 0, window
    return layers, 0
