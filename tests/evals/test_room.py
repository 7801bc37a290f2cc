"""Bytes of a row by its plan, beside the bytes that are held."""

import pytest
import torch

from rocketkv.evals.room import batches_within, prompt_bytes, row_bytes
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.together import answer_together
from support.models import prompt, tiny_model
from support.policies import POLICIES

TOKENS, NEW_TOKENS = 600, 20
NAMES = ["full", "rocketkv", "rocketkv_mt", "snapkv", "quest", "sparq", "hsa", "adakv", "duoattention", "streamingllm",
         "first_layer_whole"]  # fmt: skip


@pytest.mark.parametrize("budget", [32, 128])
@pytest.mark.parametrize("name", NAMES)
def test_the_estimate_is_near_what_is_held_and_seldom_below(name, budget):
    # Heads as large as a real model's, so that index tables are as small beside them.
    model, policy = tiny_model("llama", head_dim=64), POLICIES[name](budget)
    done = answer_together(model, [policy], prompt(TOKENS), max_new_tokens=NEW_TOKENS, backend="reference")
    held = done.cache.report().cache_bytes
    estimate = row_bytes(model, policy, context_tokens=TOKENS, new_tokens=NEW_TOKENS)
    assert 0.9 * held <= estimate <= 1.35 * held


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_whole_prompt_is_its_keys_and_values(architecture):
    model = tiny_model(architecture)
    cache = CompressedCache(model, POLICIES["full"](16))
    with attach(model), torch.inference_mode():
        model(prompt(TOKENS), **cache.kwargs)
    held = sum(layer.state.held_bytes() if hasattr(layer, "state") else
               layer.keys.numel() * 8 for layer in cache.layers)  # fmt: skip
    assert held == pytest.approx(prompt_bytes(model, TOKENS), rel=0.05)


def test_batches_by_hand():
    assert batches_within([4, 4, 4], 12) == [[0, 1, 2]]
    assert batches_within([4, 4, 4], 11) == [[0, 1], [2]]
    assert batches_within([9, 4, 4], 8) == [[0], [1, 2]]
    assert batches_within([], 8) == []
