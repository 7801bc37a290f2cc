"""A cache filled with random keys is what a prompt of that length would have left."""

import pytest
import torch

from rocketkv.attend import decode_attend
from rocketkv.bench.attend import select_and_read
from rocketkv.bench.decode import filled_compressed, filled_plain, pair_bytes, plain_bytes, weight_bytes
from rocketkv.bench.filled import Shape, fill, kept_layer, random_columns
from rocketkv.cache.layer import LayerCache
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.policies.registry import make_policy
from support.models import prompt, tiny_model

SHAPE = Shape(2, 3, 8)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_kept_layer_is_laid_out_as_a_filled_one() -> None:
    policy = make_policy("rocketkv", 64)
    direct = kept_layer(policy, SHAPE, 3000, torch.float32, generator())
    read = fill(LayerCache((policy,)), SHAPE, 3000, torch.float32, generator())
    assert direct.plans == read.plans
    assert direct.columns == read.columns
    assert direct.held_bytes() == read.held_bytes()
    for one, other in zip(direct.ragged.groups, read.ragged.groups, strict=True):
        assert torch.equal(one.bounds.pitch, other.bounds.pitch)
        assert torch.equal(one.bounds.page_tokens, other.bounds.page_tokens)


def test_refusals_of_a_kept_layer() -> None:
    with pytest.raises(ValueError, match="fit in the budget"):
        kept_layer(make_policy("rocketkv", 64), SHAPE, 50, torch.float32, generator())
    with pytest.raises(ValueError, match="does not choose"):
        kept_layer(make_policy("rocketkv-mt", 64), SHAPE, 500, torch.float32, generator())


@pytest.mark.parametrize("name", ["rocketkv", "quest", "sparq", "exact-topk", "hsa"])
def test_selection_and_attention_alone_are_those_of_the_step(name: str) -> None:
    state = kept_layer(make_policy(name, 64), SHAPE, 700, torch.float32, generator())
    q = torch.randn(1, 2, 3, 8)
    keys, values = random_columns(SHAPE, 1, torch.float32, generator())
    out = decode_attend(q[:, :, :, None], keys, values, state, scaling=0.5, dense=lambda *_: None)
    torch.testing.assert_close(select_and_read(state.ragged, q, 0.5), out[:, :, :, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["full", "rocketkv", "adakv", "streamingllm", "quest", "rocketkv-mt"])
def test_a_filled_cache_holds_what_a_read_one_holds(name: str) -> None:
    model = tiny_model("llama")
    policy = make_policy(name, 40)
    filled = filled_compressed(model, policy, 300, seed=0)
    read = CompressedCache(model, policy)
    with attach(model), torch.no_grad():
        model(prompt(300), **read.kwargs)
        model(prompt(1), **read.kwargs)
        model(prompt(1), **filled.kwargs)
    assert filled.report().tokens_seen == read.report().tokens_seen == [301]
    assert sum(filled.report().kept_tokens) == pytest.approx(sum(read.report().kept_tokens), rel=0.05)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_plain_cache_is_filled_too(architecture: str) -> None:
    model = tiny_model(architecture)
    cache, kwargs = filled_plain(model, 100, seed=0)
    with torch.no_grad():
        model(prompt(1), **kwargs)
    assert cache.get_seq_length() == 101
    assert plain_bytes(cache) <= 101 * pair_bytes(model)


def test_weights_that_a_step_reads() -> None:
    model = tiny_model("llama")
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    assert weight_bytes(model) == 4 * (model.num_parameters() - (0 if tied else embedding.numel()))
