"""What reading a prompt takes."""

import pytest
import torch

from rocketkv import CompressedCache, FullKV, RocketKV, generate
from rocketkv.cache.store import GROWTH_TOKENS
from rocketkv.hf.memory import prefill_flops, prefill_need, prefill_seconds
from support.models import prompt, tiny_model


def test_the_cache_of_a_full_prefill_is_exact():
    model = tiny_model("llama")
    need = prefill_need(model, 200, FullKV().plan(200, head_dim=12))
    assert need.cache_bytes == 200 * 2 * 2 * 2 * 12 * 4


def test_the_peak_of_a_compressed_prefill_is_what_is_kept_and_one_layer():
    model, policy = tiny_model("llama_mha"), RocketKV(budget_tokens=32)
    need = prefill_need(model, 600, policy.plan(600, head_dim=12))
    cache = CompressedCache(model, policy)
    ids = prompt(600)
    generate(model, policy, cache=cache, input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=1)
    one_layer = 600 * 4 * 2 * 12 * 4
    # Room to grow is not in the estimate: it does not grow with the prompt.
    room = 3 * 4 * GROWTH_TOKENS * (2 + 1) * 12 * 4
    held = cache.report().cache_bytes - room
    assert need.cache_bytes == pytest.approx(held + one_layer, rel=0.05)
    assert need.cache_bytes < 3 * one_layer


def test_sliding_layers_hold_their_window_only():
    model = tiny_model("gemma3")
    config = model.config
    full = sum(kind == "full_attention" for kind in config.layer_types)
    window = (len(config.layer_types) - full) * config.sliding_window
    pair_bytes = config.num_key_value_heads * 2 * config.head_dim * 4
    need = prefill_need(model, 500, FullKV().plan(500, head_dim=config.head_dim))
    assert need.cache_bytes == (full * 500 + window) * pair_bytes


def test_eager_attention_needs_the_square():
    eager, sdpa = tiny_model("llama", attention="eager"), tiny_model("llama", attention="sdpa")
    plan = FullKV().plan(1000, head_dim=12)
    extra = prefill_need(eager, 1000, plan).work_bytes - prefill_need(sdpa, 1000, plan).work_bytes
    assert extra == 4 * 1000**2 * 12


def test_attention_grows_with_the_square():
    model = tiny_model("llama")
    short, long = prefill_flops(model, 1000), prefill_flops(model, 2000)
    linear = 2 * 1000 * (model.num_parameters() - model.get_input_embeddings().weight.numel())
    assert long - 2 * short == pytest.approx(2 * (short - linear))
    assert prefill_seconds(model, prompt(700)[0].tolist()) > 0
