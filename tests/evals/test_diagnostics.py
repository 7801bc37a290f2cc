"""Diagnostics: what a policy reads of the full cache's attention, by hand, by law and as pictures."""

import numpy as np
import pytest
import torch

from rocketkv.cache.positions import padded_positions
from rocketkv.evals.diagnostics import Diagnosis, best, diagnose
from rocketkv.evals.plots import plot_all
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.policies.full import FullKV
from support.models import left_padded, prompt, tiny_model
from support.policies import METHODS, POLICIES
from support.trace import Trace

TOKENS, BUDGET = 120, 40


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    names = ["exact_group", "rocketkv", "rocketkv_mt", "snapkv", "exact_head", "loki"]
    return diagnose(
        tiny_model("llama"), [POLICIES[name](BUDGET) for name in names], prompt(TOKENS), new_tokens=5, labels=names
    )


def test_the_oracle_of_the_first_layer_finds_the_exact_top(found) -> None:
    # Only in the first layer are its queries the full cache's own.
    oracle = found.policies.index("exact_group")
    np.testing.assert_array_equal(found.recall[oracle, :, 0], 1.0)
    np.testing.assert_array_equal(found.read_tokens[oracle], BUDGET)


def test_shares_are_shares(found) -> None:
    assert found.recall.shape == found.mass.shape == (6, 5, 2, 2)
    assert len(found.answer_ids) == 5 and found.prompt_tokens == TOKENS
    for values in (found.recall, found.mass):
        assert values.min() >= 0 and values.max() <= 1 + 1e-6
    # What reads half of the budget cannot find more than half of the top.
    assert found.recall[found.policies.index("rocketkv")].max() <= 0.5
    heads = found.mass[found.policies.index("exact_head"), :, 0] - found.mass[found.policies.index("exact_group"), :, 0]
    assert heads.min() >= -1e-6, "no other choice of as many tokens per head holds more"


def test_distinct_tokens_of_the_oracle(found) -> None:
    np.testing.assert_array_equal(found.distinct[0], BUDGET)
    assert (np.diff(found.distinct, axis=0) >= 0).all()
    assert found.distinct.max() <= TOKENS + 5


def test_best_by_hand() -> None:
    attention = torch.tensor([[[0.5, 0.1, 0.3, 0.1], [0.1, 0.3, 0.3, 0.3]]])  # mean 0.3, 0.2, 0.3, 0.2
    assert best(attention, 3)[0].tolist() == [True, True, True, False]


@pytest.mark.parametrize("name", ["rocketkv", "rocketkv_mt", "sinks_and_locals", "quest"])
def test_masses_of_what_a_trace_saw(name) -> None:
    model, answer = tiny_model("llama"), [5, 60, 7]
    seen = diagnose(model, [POLICIES[name](BUDGET)], prompt(TOKENS), answer_ids=answer)
    trace, full = Trace(model, POLICIES[name](BUDGET)), CompressedCache(model, FullKV())
    weights = []

    def observer(cache, q, scaling, reads) -> None:
        if cache.layer == 0:
            weights.append((q[0] @ cache.columns_held()[0][0].transpose(-1, -2) * scaling).softmax(-1))

    trace.prompt(prompt(TOKENS))
    with attach(model), torch.no_grad():
        model(prompt(TOKENS), **full.kwargs)
        full.observe_steps(observer)
        for step, token in enumerate(answer):
            trace.step(torch.tensor([[token]]))
            model(torch.tensor([[token]]), **full.kwargs)
            for head in range(2):
                columns = trace.reads[step][0, 0, head]
                expected = float(weights[step][head][:, columns].sum(-1).mean())
                assert seen.mass[0, step, 0, head] == pytest.approx(expected, abs=1e-5)
                assert seen.read_tokens[0, step, 0, head] == len(columns)


def test_a_budget_above_the_prompt_reads_everything() -> None:
    seen = diagnose(tiny_model("llama"), [METHODS["rocketkv"](200)], prompt(50), new_tokens=3)
    np.testing.assert_allclose(seen.mass, 1, atol=1e-6)
    np.testing.assert_array_equal(seen.recall, 1)
    assert seen.read_tokens[0, :, 0, 0].tolist() == [51, 52, 53]


def test_layers_of_other_kinds_are_left_out() -> None:
    seen = diagnose(tiny_model("gemma3"), [METHODS["rocketkv"](40)], prompt(90), new_tokens=2)
    assert seen.recall.shape[2] == 2


def test_what_cannot_be_diagnosed() -> None:
    model = tiny_model("llama")
    with pytest.raises(ValueError, match="at least one policy"):
        diagnose(model, [], prompt(50))
    with pytest.raises(ValueError, match="in any case"):
        diagnose(model, [FullKV()], prompt(50))
    with pytest.raises(ValueError, match="answer is empty"):
        diagnose(model, [METHODS["rocketkv"](40)], prompt(50), answer_ids=[])


@pytest.mark.law
@pytest.mark.parametrize("name", ["rocketkv", "rocketkv_mt", "adakv", "loki"])
def test_kept_positions_are_those_of_a_trace(name) -> None:
    # Two padded rows, two turns and enough steps for the store to grow; the trace counts columns.
    model = tiny_model("llama")
    trace = Trace(model, POLICIES[name](40), keep_positions=True)
    pads = torch.tensor([0, 37])
    trace.prompt(*left_padded([prompt(90), prompt(53)]))
    for turn in range(2):
        for column in range(68 if turn == 0 else 2):
            trace.step(prompt(1, seed=column, rows=2))
        for layer, state in enumerate(trace.cache.states):
            positions, held = padded_positions(state.kv)
            for row in range(2):
                for head in range(positions.shape[1]):
                    mine = positions[row, head][held[row, head]] + pads[row]
                    assert mine.tolist() == stored(trace, layer, row, head)
        trace.prompt(prompt(20, seed=5, rows=2))


def stored(trace: Trace, layer: int, row: int, head: int) -> list[int]:
    """Columns that a store holds: what a trace says was kept, or everything where nothing is ever dropped."""
    state = trace.cache.states[layer]
    if state.ragged.candidates is None:
        return trace.kept[layer, row, head]
    return trace.mask[row].nonzero()[:, 0].tolist()


def test_no_positions_unless_asked_for() -> None:
    model, caches = tiny_model("llama"), []
    for keep_positions in (False, True):
        caches.append(CompressedCache(model, METHODS["rocketkv"](40), keep_positions=keep_positions))
        with attach(model), torch.no_grad():
            model(prompt(90), **caches[-1].kwargs)
    plain, noted = (cache.states[0] for cache in caches)
    assert plain.kv.positions is None
    assert noted.held_bytes() - plain.held_bytes() == 8 * plain.kv.keys.shape[0]


def test_plots(found, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    paths = plot_all(found, tmp_path)
    assert [path.name for path in paths] == ["recall.png", "mass.png", "distinct.png"]
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) > 10_000
    found.save(tmp_path / "found.npz")
    with np.load(tmp_path / "found.npz") as arrays:
        np.testing.assert_array_equal(arrays["recall"], found.recall)
        assert arrays["policies"].tolist() == found.policies
