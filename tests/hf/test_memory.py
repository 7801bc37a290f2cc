"""Bytes are counted from the tensors that are held, fall when tokens are evicted, and never peak above one
full layer.
"""

import gc

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

import rocketkv
from rocketkv.cache.store import headroom
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.policies.base import Policy, Selector
from support.models import ARCHITECTURES, COMMON, DTYPES, greedy, left_padded, prompt, tiny_model
from support.policies import COMPRESSING, POLICIES

pytestmark = pytest.mark.law


def reachable_bytes(root: object) -> int:
    """Bytes of every tensor that can be reached from an object through plain attributes and containers.

    Policies are left out: what was calibrated for a method (Loki's bases) belongs to it, not to a cache.
    """
    memory: dict[int, int] = {}
    seen: set[int] = set()
    open_ends = [root]
    while open_ends:
        item = open_ends.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            memory[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, list | tuple | set):
            open_ends += list(item)
        elif isinstance(item, dict):
            open_ends += list(item.values())
        elif type(item).__module__.startswith("rocketkv.") and not isinstance(item, Policy | Selector):
            open_ends += list(vars(item).values())
    return sum(memory.values())


@pytest.mark.parametrize("name", POLICIES)
def test_reported_bytes_are_those_of_the_held_tensors(name: str) -> None:
    model, policy = tiny_model("llama"), POLICIES[name](40)
    for rows in ([prompt(150)], [prompt(150), prompt(20, seed=1)], [prompt(20)]):
        ids, mask = left_padded(rows)
        cache = CompressedCache(model, policy)
        rocketkv.generate(model, policy, cache=cache, input_ids=ids, attention_mask=mask, **greedy(3))
        report, tables = cache.report(), 0
        for state in cache.states:
            tables += state.row_tokens.untyped_storage().nbytes()
        # All but an integer a row, which says how many tokens it has seen.
        assert 0 <= sum(map(reachable_bytes, cache.states)) - report.cache_bytes <= tables
        assert report.cache_bytes == sum(report.layer_bytes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", [None, 0.0, 1.0])
def test_bytes_follow_the_plan(split: float | None, dtype: str) -> None:
    model, policy = tiny_model("llama", DTYPES[dtype]), rocketkv.RocketKV(budget_tokens=40, split=split)
    cache = CompressedCache(model, policy)
    with attach(model), torch.no_grad():
        model(prompt(700), **cache.kwargs)
        model(prompt(1), **cache.kwargs)
    plan = policy.plan(700, head_dim=12)
    capacity = int(headroom(torch.tensor([[plan.kept_tokens]])))
    pages = -(-capacity // plan.page_tokens)
    size = DTYPES[dtype].itemsize
    layers, heads, head_dim = 2, 2, 12
    pairs = capacity * 2 * head_dim
    bounds = pages * head_dim * (2 if plan.page_tokens > 1 else 1)
    expected = layers * heads * (pairs + bounds) * size
    tables = layers * 8 * (heads * (3 + 3) + 2)  # starts, lengths, capacities; upper, lower, pitch; page, budget
    assert cache.report().cache_bytes == expected + tables
    assert cache.report().full_cache_bytes == layers * heads * 701 * 2 * head_dim * size


def test_a_dense_plan_holds_what_a_full_cache_holds() -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, POLICIES["rocketkv"](200))
    with attach(model), torch.no_grad():
        model(prompt(100), **cache.kwargs)
        assert cache.report().cache_bytes == cache.report().full_cache_bytes
        model(prompt(1), **cache.kwargs)
    assert cache.report().cache_bytes == cache.report().full_cache_bytes


def test_a_fused_projection_is_not_kept_alive() -> None:
    # Phi-3 cuts queries, keys and values out of one tensor: a view of it would hold all three.
    torch.manual_seed(0)
    model = Phi3ForCausalLM(Phi3Config(**COMMON)).eval()
    for policy in (POLICIES["full"](0), POLICIES["rocketkv"](40)):
        cache = CompressedCache(model, policy)
        with attach(model), torch.no_grad():
            model(prompt(700), **cache.kwargs)
        assert cache.report().cache_bytes <= cache.report().full_cache_bytes


@pytest.mark.parametrize("architecture", ["llama_mha", "llama", "qwen2", "gemma3"])
def test_peak_of_an_unchunked_prefill_is_the_evicted_layers_and_one_full_one(architecture: str) -> None:
    model = tiny_model(architecture)
    cache = CompressedCache(model, POLICIES["rocketkv"](40))
    live: list[tuple[int, list[int]]] = []
    cache.on_prompt_layer = lambda layer, layers: live.append((layer, [state.held_bytes() for state in cache.states]))
    with attach(model), torch.no_grad():
        model(prompt(700), **cache.kwargs)
    full = cache.report().full_cache_bytes // len(cache.states)
    assert len(live) == len(cache.states)
    for done, (_, held) in enumerate(live, start=1):
        assert all(0 < size < full / 2 for size in held[:done]), "a layer that was read is still whole"
        assert held[done:] == [0] * (len(held) - done)
        # While this layer was read, itself was whole and all before it were evicted.
        assert sum(held[: done - 1]) + full < (done - 1) * full / 2 + full + 1


def test_no_full_length_tensor_survives_the_prefill() -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, POLICIES["rocketkv"](40))
    full_keys = 2 * 701 * 12
    gc.collect()
    before = {id(item) for item in gc.get_objects() if type(item) is torch.Tensor}
    with attach(model), torch.no_grad():
        model(prompt(701), **cache.kwargs)
    gc.collect()
    fresh = [item for item in gc.get_objects() if type(item) is torch.Tensor and id(item) not in before]
    assert max(item.untyped_storage().nbytes() for item in fresh) < full_keys * 4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_stored_heads_are_the_models_own(architecture: str) -> None:
    model = tiny_model(architecture)
    for policy in (POLICIES["full"](0), POLICIES["rocketkv"](40)):
        cache = CompressedCache(model, policy)
        with attach(model), torch.no_grad():
            model(prompt(90), **cache.kwargs)
        for state in cache.states:
            heads = state.held.keys.shape[1] if state.kv is None else state.kv.lengths.shape[1]
            assert heads == model.config.num_key_value_heads


def deletes(policy: Policy) -> bool:
    """Whether most of a prompt of 700 tokens is dropped from memory, on every head."""
    evictor = policy.slots[0]
    fewer = policy.plan(700, head_dim=12).kept_tokens < 700
    return fewer and not evictor.retains and evictor.equivalent_tokens(700) is None


EVICTING = [name for name, make in COMPRESSING.items() if deletes(make(40))]


@pytest.mark.parametrize("name", EVICTING)
def test_less_is_held_on_a_long_prompt(name: str) -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, COMPRESSING[name](40))
    with attach(model), torch.no_grad():
        model(prompt(700), **cache.kwargs)
    assert cache.report().kept_fraction < (0.8 if COMPRESSING[name](40).skip_layers else 0.6)
    assert str(cache.report()).startswith("tokens kept")
    assert cache.report().as_dict()["cache_bytes"] == cache.report().cache_bytes
