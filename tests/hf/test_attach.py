"""Attaching changes nothing for other caches, is undone on exit, and is demanded by ours."""

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM, StaticCache

import rocketkv
from rocketkv.hf.attach import attach, is_attached
from rocketkv.hf.attention import BASES, NAME
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.compat import CACHE_ARGUMENT
from rocketkv.hf.errors import NotAttachedError
from support.models import ARCHITECTURES, greedy, left_padded, prompt, tiny_config, tiny_model
from support.policies import POLICIES

pytestmark = pytest.mark.law


@pytest.mark.parametrize("layers", [1, 2])
def test_an_unattached_model_refuses_the_cache(layers: int) -> None:
    model = tiny_model("llama", num_hidden_layers=layers)
    for policy in (POLICIES["rocketkv"](40), POLICIES["full"](0)):
        cache = CompressedCache(model, policy)
        with pytest.raises(NotAttachedError, match="attach"):
            model.generate(prompt(60), **cache.kwargs, **greedy(3))


def test_a_model_detached_half_way_refuses_the_cache() -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, POLICIES["rocketkv"](40))
    with attach(model), torch.no_grad():
        model(prompt(60), **cache.kwargs)
        model(prompt(1), **cache.kwargs)
    with pytest.raises(NotAttachedError), torch.no_grad():
        model(prompt(1), **cache.kwargs)
    with attach(model), torch.no_grad():  # nothing was harmed
        model(prompt(1), **cache.kwargs)
    assert cache.report().tokens_seen == [62]


def test_a_model_that_ignores_the_handed_layer_is_noticed() -> None:
    # The config says attached, but the layers run something else: the next update sees that nobody took the
    # layer.
    model = tiny_model("llama")
    cache = CompressedCache(model, POLICIES["rocketkv"](40))
    with attach(model), torch.no_grad():
        keys = torch.randn(1, 2, 5, 12)
        cache.update(keys, keys, 0)
        with pytest.raises(NotAttachedError, match="did not use"):
            cache.update(keys, keys, 0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_other_caches_work_as_if_nothing_were_attached(architecture: str, attention: str) -> None:
    model = tiny_model(architecture, attention=attention)
    ids, mask = left_padded([prompt(70), prompt(40, seed=1)])
    makers = {
        "none": dict,
        "dynamic": lambda: {CACHE_ARGUMENT: DynamicCache(config=model.config)},
        "static": lambda: {CACHE_ARGUMENT: StaticCache(config=model.config, max_cache_len=90)},
        "off": lambda: {"use_cache": False},
    }
    for make in makers.values():
        plain = model.generate(ids, attention_mask=mask, **make(), **greedy(5))
        with attach(model):
            ours = model.generate(ids, attention_mask=mask, **make(), **greedy(5))
        assert torch.equal(plain.sequences, ours.sequences)
        assert all(torch.equal(a, b) for a, b in zip(plain.logits, ours.logits, strict=True))


def test_a_bare_forward_with_attention_weights_is_unchanged() -> None:
    model = tiny_model("llama", attention="eager")
    with torch.no_grad():
        plain = model(prompt(20), output_attentions=True)
        with attach(model):
            ours = model(prompt(20), output_attentions=True)
    assert torch.equal(plain.logits, ours.logits)
    assert all(torch.equal(a, b) for a, b in zip(plain.attentions, ours.attentions, strict=True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_exit_restores_the_config(attention: str) -> None:
    model = tiny_model("llama", attention=attention)
    with attach(model) as same:
        assert same is model
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == attention
    assert BASES == {}


def test_exit_restores_after_an_exception() -> None:
    model = tiny_model("llama")
    with pytest.raises(KeyError), attach(model):
        raise KeyError
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match="policies for a batch"):
        rocketkv.generate(model, [POLICIES["full"](0)] * 2, input_ids=prompt(9, rows=3), **greedy(2))
    assert model.config._attn_implementation == "sdpa"
    assert BASES == {}


def test_attachments_nest() -> None:
    model = tiny_model("llama")
    with attach(model):
        with attach(model):
            assert is_attached(model.config)
        assert is_attached(model.config)
        rocketkv.generate(model, POLICIES["rocketkv"](40), input_ids=prompt(60), **greedy(3))
        assert is_attached(model.config)
    assert not is_attached(model.config)


def test_two_models_of_one_config() -> None:
    config = tiny_config("llama")
    config._attn_implementation = "sdpa"
    one, two = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    ids, policy = prompt(70), POLICIES["rocketkv"](40)
    alone = two.generate(ids, **greedy(5))
    with attach(one):
        beside = two.generate(ids, **greedy(5))
        compressed = rocketkv.generate(two, policy, input_ids=ids, **greedy(5))
        assert is_attached(config)
    assert torch.equal(alone.sequences, beside.sequences)
    assert torch.equal(compressed.sequences, rocketkv.generate(two, policy, input_ids=ids, **greedy(5)).sequences)
    with attach(one), attach(two):
        pass
    assert config._attn_implementation == "sdpa"
    assert BASES == {}


def test_two_models_of_two_configs_do_not_disturb_each_other() -> None:
    one, two = tiny_model("llama"), tiny_model("qwen2", attention="eager")
    with attach(one):
        assert not is_attached(two.config)
        cache = CompressedCache(two, POLICIES["rocketkv"](40))
        with pytest.raises(NotAttachedError):
            two.generate(prompt(60), **cache.kwargs, **greedy(3))
        with attach(two):
            assert BASES[id(two.config)] == "eager"
        assert is_attached(one.config)


def test_exits_in_another_order_than_entries() -> None:
    model = tiny_model("llama")
    first, second = attach(model), attach(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_attached(model.config)
    second.__exit__(None, None, None)
    assert model.config._attn_implementation == "sdpa"
