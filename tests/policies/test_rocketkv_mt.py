"""RocketKV-MT: nothing is deleted, every turn chooses anew from everything so far, and no token is held twice."""

import pytest
import torch

import rocketkv
from rocketkv.bench.synthetic import LayerShape, SyntheticLayer
from rocketkv.cache.store import headroom
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.policies.rocketkv import RocketKVMT
from rocketkv.policies.snapkv import SnapKV
from support.bounds import assert_bounds_are_true
from support.models import greedy, prompt, tiny_model
from support.trace import Trace

SHAPE = LayerShape(kv_heads=2, group_size=2, head_dim=16)
BUDGET = 40


def policy(budget_tokens: int = BUDGET) -> RocketKVMT:
    """RocketKV-MT with a small window, so that short prompts are chosen from."""
    return RocketKVMT(budget_tokens=budget_tokens, evictor=SnapKV(window_tokens=4, pool_tokens=5))


def test_nothing_is_deleted_and_every_turn_chooses_from_everything() -> None:
    trace = Trace(tiny_model("llama"), policy())
    columns, chosen = 0, []
    for turn, (words, answer) in enumerate(((150, 6), (30, 4), (120, 5))):
        trace.prompt(prompt(words, seed=turn))
        columns += words
        kept = policy().plan(columns, head_dim=12).kept_tokens
        for state in trace.cache.states:
            assert state.kv.lengths.tolist() == [[columns] * 2]
            assert state.ragged.candidates.lengths.tolist() == [[kept] * 2]
        assert all(len(held) == kept and held == sorted(set(held)) for held in trace.kept.values())
        chosen.append({key: set(held) for key, held in trace.kept.items()})
        for step in range(answer):
            trace.step(prompt(1, seed=step))
        columns += answer
        # What the turn generated may be read, whatever was chosen.
        assert all(set(range(columns - answer, columns)) <= set(held) for held in trace.kept.values())
    assert trace.cache.report().evicted_tokens == 0
    assert trace.cache.report().kept_tokens == [columns]
    # Tokens that one turn left out come back in a later one.
    back = [(chosen[2][key] - chosen[1][key]) & set(range(150)) for key in chosen[2]]
    assert any(back)


def test_what_is_read_is_among_the_chosen() -> None:
    trace = Trace(tiny_model("llama"), policy())
    for turn in range(2):
        trace.prompt(prompt(150, seed=turn))
        for step in range(5):
            trace.step(prompt(1, seed=step))
            for place, columns in trace.reads[-1].items():
                assert set(columns) <= set(trace.kept[place])
                assert len(columns) == BUDGET // 2


def test_no_second_copy_of_what_is_chosen() -> None:
    layer = SyntheticLayer(policy(64), SHAPE)
    layer.prompt(2000)
    (cache,) = layer.steps(1)
    ragged = cache.ragged
    rooms = int(headroom(torch.tensor([[2000, 2000]])).sum())
    assert ragged.kv.keys.shape == (rooms, 16)
    assert ragged.kv.values.shape == (rooms, 16)
    # Beside the store: 4 bytes a candidate, the bounds of its pages, and tables.
    chosen = int(ragged.candidates.capacities.sum())
    assert ragged.candidates.slots.numel() * ragged.candidates.slots.element_size() == 4 * chosen
    page = int(ragged.groups[0].bounds.page_tokens)
    bound_bytes = 2 * 16 * 4 * int((-(-ragged.candidates.capacities // page)).sum())
    left = cache.held_bytes() - rooms * SHAPE.pair_bytes - 4 * chosen - bound_bytes
    assert 0 <= left <= 8 * 32


@pytest.mark.parametrize("prompts", [(2000,), (30, 500), (300, 20, 700)])
def test_traffic_stays_at_the_budget_whatever_is_stored(prompts: tuple[int, ...]) -> None:
    layer = SyntheticLayer(policy(64), SHAPE)
    for tokens in prompts:
        layer.prompt(tokens)
        for cache in layer.steps(20):
            page = 0 if cache.ragged is None or not cache.ragged.selects else cache.ragged.groups[0].bounds.page_tokens
            rounding = 1 if int(page) else 0  # the last page, in part
            assert cache.counters.step_bytes <= 2 * (64 + rounding) * SHAPE.pair_bytes


def test_positions_are_true_over_three_turns() -> None:
    # A one-layer model rotates keys by position alone: chosen keys are those that a plain cache holds in their places.
    model = tiny_model("llama", num_hidden_layers=1)
    cache, said = CompressedCache(model, policy()), prompt(150)
    for turn in range(3):
        mask = torch.ones_like(said)
        said = rocketkv.generate(
            model, policy(), cache=cache, input_ids=said, attention_mask=mask, **greedy(4)
        ).sequences
        assert cache.get_seq_length() == said.shape[1] - 1
        said = torch.cat([said, prompt(50, seed=turn)], 1)
    with torch.no_grad():
        plain = model(said[:, : cache.get_seq_length()], use_cache=True).past_key_values.layers[0].keys
    kv = cache.states[0].kv
    for head in range(2):
        start, length = int(kv.starts[0, head]), int(kv.lengths[0, head])
        torch.testing.assert_close(kv.keys[start : start + length], plain[0, head], atol=1e-5, rtol=1e-5)


def test_a_dense_start() -> None:
    # Inside the budget at first, then sparse from everything, then chosen from everything by a second prompt.
    trace = Trace(tiny_model("llama"), policy())
    trace.prompt(prompt(20))
    assert trace.cache.states[0].whole
    for step in range(40):
        trace.step(prompt(1, seed=step))
    assert trace.reads[19] == {}
    assert len(trace.reads[20]) == 4
    assert trace.cache.states[0].ragged.candidates is None
    trace.prompt(prompt(100, seed=1))
    kept = policy().plan(160, head_dim=12).kept_tokens
    assert trace.cache.states[0].ragged.candidates.lengths.tolist() == [[kept] * 2]
    assert trace.cache.states[0].kv.lengths.tolist() == [[160] * 2]
    trace.step(prompt(1))
    assert_bounds_are_true(trace.cache)


def test_beams_carry_what_was_chosen() -> None:
    model, cache = tiny_model("llama"), CompressedCache(tiny_model("llama"), policy())
    options = greedy(8, num_beams=3, num_return_sequences=3)
    out = rocketkv.generate(model, policy(), cache=cache, input_ids=prompt(150), **options)
    assert out.sequences.shape == (3, 158)
    lengths = cache.states[0].ragged.candidates.lengths
    assert lengths.tolist() == [[policy().plan(150, head_dim=12).kept_tokens + 7] * 2] * 3
    assert_bounds_are_true(cache)
    with attach(model), torch.no_grad():
        model(prompt(1, rows=3), **cache.kwargs)
    assert_bounds_are_true(cache)
