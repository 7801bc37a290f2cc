"""A cache that nobody holds gives its memory back at once, without waiting for the garbage collector."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

import rocketkv
from rocketkv.hf.together import answer_together
from support.models import tiny_model
from support.policies import POLICIES


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("name", POLICIES)
def test_a_dropped_cache_is_freed(name):
    model, policy = tiny_model("llama"), POLICIES[name](32)
    cache = rocketkv.CompressedCache(model, policy)
    cache.on_prompt_layer = lambda done, layers: None
    ids = torch.randint(3, 90, (1, 70))
    rocketkv.generate(model, policy, cache=cache, input_ids=ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    state = weakref.ref(cache.states[-1])
    del cache
    assert state() is None


@pytest.mark.usefixtures("_no_collector")
def test_answers_of_many_policies_are_freed():
    model = tiny_model("llama")
    policies = [make(32) for make in POLICIES.values()]
    done = answer_together(model, policies, torch.randint(3, 90, (1, 70)), max_new_tokens=4, stop_ids=[])
    state = weakref.ref(done.cache.states[0])
    del done
    assert state() is None
