"""Compressed decode equals a full cache with the unread tokens masked, step by step, and reads the tokens
that the specification names."""

import pytest
import torch

from rocketkv.policies.hsa import HybridTopK
from rocketkv.policies.rocketkv import RocketKV
from rocketkv.policies.snapkv import SnapKV
from support.models import ARCHITECTURES, DTYPES, left_padded, prompt, tiny_model
from support.oracle import Oracle
from support.trace import Trace

pytestmark = pytest.mark.law

CASES = {
    "adaptive": {"budget_tokens": 40},
    "split_0": {"budget_tokens": 40, "split": 0.0},
    "split_1": {"budget_tokens": 48, "split": 1.0},
    "small_window": {"budget_tokens": 24, "window": 4, "pool": 7},
    "average": {"budget_tokens": 31, "pooling": "avg", "pool": 9},
    "planned": {"budget_tokens": 40, "planned": 64},
    "pages_of_three": {"budget_tokens": 24, "split": 0.0},
    "a_quarter_for_the_estimate": {"budget_tokens": 31, "share": 0.25},
    "most_for_the_estimate": {"budget_tokens": 40, "share": 0.9, "split": 0.0},
    "least": {"budget_tokens": 16, "window": 8},
}


def policy_of(case: dict) -> tuple[RocketKV, dict]:
    """The policy that a case describes, and the options of its cache."""
    evictor = SnapKV(case.get("window", 32), case.get("pool", 63), case.get("pooling", "max"))
    selector = HybridTopK(estimate_share=case.get("share", 0.5))
    policy = RocketKV(budget_tokens=case["budget_tokens"], split=case.get("split"), evictor=evictor, selector=selector)
    return policy, {"planned_new_tokens": case.get("planned", 0)}


def relative_slack(dtype: torch.dtype) -> float:
    """How far a chosen score may lie below the best one left out.

    Hidden states differ by roundings of the dtype, and a change of n eps in a logit of size up to 16 changes
    a probability by 16 n eps of itself.
    """
    return 16 * 4 * torch.finfo(dtype).eps


def run(model: torch.nn.Module, case: dict, turns: list[tuple]) -> None:
    """Feed the turns, (prompt ids, mask, tokens of the answer), to the compressed cache and to two oracles.

    The one in the model's dtype judges the choices; the one in float64 is the truth that errors are measured
    from.
    """
    policy, options = policy_of(case)
    trace = Trace(model, policy, **options)
    near = Oracle(model, **case, tolerance=relative_slack(model.dtype))
    precise = Oracle(double_of(model), **case, judge=False, tolerance=float("inf"))
    mine, theirs, truth = [], [], []
    for ids, mask, answer in turns:
        mine.append(trace.prompt(ids, mask))
        kept = {place: list(columns) for place, columns in trace.kept.items()}
        theirs.append(near.prompt(ids, mask, given=kept))
        truth.append(precise.prompt(ids, mask, given=kept))
        for column in range(answer.shape[1]):
            token = answer[:, column : column + 1]
            mine.append(trace.step(token))
            theirs.append(near.step(token, given=trace.reads[-1]))
            truth.append(precise.step(token, given=trace.reads[-1]))
        assert_store_is_what_the_oracle_keeps(trace, near)
    assert near.sparse_choices > 0, "the case never selects: it tests nothing"
    mine, theirs, truth = (torch.stack(x).double() for x in (mine, theirs, truth))
    own_error, reference_error = (mine - truth).abs().max(), (theirs - truth).abs().max()
    floor = 8 * torch.finfo(model.dtype).eps * truth.abs().max()
    assert own_error <= 2 * reference_error + floor, (own_error, reference_error, floor)


def assert_store_is_what_the_oracle_keeps(trace: Trace, oracle: Oracle) -> None:
    """Every stored key stands in the place of its position; nothing is lost, moved or doubled."""
    slack = 64 * torch.finfo(trace.model.dtype).eps
    for layer, state in enumerate(trace.cache.states):
        for row in range(state.kv.lengths.shape[0]):
            for head in range(state.kv.lengths.shape[1]):
                columns = oracle.kept[layer, row, head]
                assert columns == trace.kept[layer, row, head]
                part = slice(
                    int(state.kv.starts[row, head]),
                    int(state.kv.starts[row, head] + state.kv.lengths[row, head]),
                )
                full = oracle.cache.layers[oracle.full[layer]]
                for held, whole in ((state.kv.keys, full.keys), (state.kv.values, full.values)):
                    expected = whole[row, head, columns]
                    scale = float(expected.abs().max())
                    torch.testing.assert_close(held[part], expected, atol=slack * scale, rtol=0)


DOUBLES: dict[int, torch.nn.Module] = {}


def double_of(model: torch.nn.Module) -> torch.nn.Module:
    """The same weights in float64."""
    if id(model) not in DOUBLES:
        twin = type(model)(model.config.__class__.from_dict(model.config.to_dict())).eval()
        twin.load_state_dict(model.state_dict())
        twin.config._attn_implementation = "sdpa"
        DOUBLES[id(model)] = twin.double()
    return DOUBLES[id(model)]


@pytest.mark.parametrize("case", CASES)
def test_every_case(case: str) -> None:
    run(tiny_model("llama"), CASES[case], [(prompt(173), None, prompt(7, seed=1))])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_and_dtype(architecture: str, dtype: str) -> None:
    model = tiny_model(architecture, DTYPES[dtype])
    run(model, CASES["adaptive"], [(prompt(141), None, prompt(5, seed=1))])


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_eager(architecture: str) -> None:
    model = tiny_model(architecture, attention="eager")
    run(model, CASES["adaptive"], [(prompt(141), None, prompt(4, seed=1))])


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
def test_ragged_batch(architecture: str) -> None:
    # One row is evicted, one is inside the budget and becomes sparse while it answers, one is shorter than
    # the window.
    ids, mask = left_padded([prompt(120), prompt(38, seed=2), prompt(5, seed=3)])
    run(tiny_model(architecture), CASES["adaptive"], [(ids, mask, prompt(6, seed=1, rows=3))])


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_three_turns(architecture: str) -> None:
    turns = [(prompt(90), None, prompt(3, seed=1)), (prompt(70, seed=2), None, prompt(3, seed=3)),
             (prompt(9, seed=4), None, prompt(3, seed=5))]  # fmt: skip
    run(tiny_model(architecture), CASES["small_window"], turns)


def test_second_turn_of_a_ragged_batch() -> None:
    first = left_padded([prompt(80), prompt(30, seed=2)])
    second = left_padded([prompt(12, seed=3), prompt(60, seed=4)])
    run(
        tiny_model("llama"),
        CASES["small_window"],
        [(*first, prompt(4, seed=1, rows=2)), (*second, prompt(4, seed=5, rows=2))],
    )


@pytest.mark.parametrize("tokens", [40, 41, 39])
def test_prompts_at_the_budget(tokens: int) -> None:
    run(tiny_model("llama"), CASES["adaptive"], [(prompt(tokens), None, prompt(5, seed=1))])


def test_pages_are_laid_out_again_when_the_answer_outgrows_them() -> None:
    # Dense at first, pages of one token from 17 tokens on, laid out anew when 35 are held, and once more past
    # 70.
    run(tiny_model("llama"), CASES["least"], [(prompt(12), None, prompt(64, seed=1))])
