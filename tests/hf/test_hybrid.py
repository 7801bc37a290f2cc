"""Gemma 3: only full-attention layers are compressed; sliding layers keep transformers' own cache."""

import pytest
import torch
from transformers import DynamicCache

import rocketkv
from rocketkv.hf.cache import CompressedCache, CompressedLayer
from support.models import greedy, left_padded, prompt, tiny_model
from support.policies import POLICIES

pytestmark = pytest.mark.law


def test_only_full_attention_layers_are_compressed() -> None:
    model = tiny_model("gemma3")
    cache, plain = CompressedCache(model, POLICIES["rocketkv"](40)), DynamicCache(config=model.config)
    assert len(cache.states) == 2
    for kind, ours, theirs in zip(model.config.layer_types, cache.layers, plain.layers, strict=True):
        assert isinstance(ours, CompressedLayer) == (kind == "full_attention")
        assert kind == "full_attention" or type(ours) is type(theirs)


def test_sliding_layers_hold_what_transformers_holds() -> None:
    model, policy = tiny_model("gemma3"), POLICIES["rocketkv"](40)
    ids, mask = left_padded([prompt(90), prompt(50, seed=1)])
    cache = CompressedCache(model, policy)
    out = rocketkv.generate(model, policy, cache=cache, input_ids=ids, attention_mask=mask, **greedy(5))
    plain = DynamicCache(config=model.config)
    full = torch.cat([mask, torch.ones(2, 4, dtype=mask.dtype)], 1)
    with torch.no_grad():
        model(out.sequences[:, :-1], attention_mask=full, position_ids=(full.cumsum(-1) - 1).clamp(min=0),
              **{rocketkv_argument(): plain})  # fmt: skip
    # Layer 0 is sliding and sees only embeddings, so it holds the same numbers whatever the others select.
    kept = min(cache.layers[0].keys.shape[-2], plain.layers[0].keys.shape[-2])
    torch.testing.assert_close(cache.layers[0].keys[:, :, -kept:], plain.layers[0].keys[:, :, -kept:])


def rocketkv_argument() -> str:
    """What forwards call the cache in this version of transformers."""
    return next(iter(CompressedCache(tiny_model("gemma3"), POLICIES["full"](0)).kwargs))
