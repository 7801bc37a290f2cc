"""Forced continuations: Full-KV's numbers are the model's own, and a method's come from its own decode steps."""

import pytest
import torch

from rocketkv.hf.forced import score_continuations
from support.models import prompt, tiny_model
from support.oracle import Oracle
from support.policies import POLICIES

CONTINUATIONS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]


def dense_sums(model, context, continuations):
    """Log-likelihoods of the uncompressed model, each from one forward."""
    sums, greedy = [], []
    for ids in continuations:
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *ids]])).logits[0, len(context) - 1 : -1]
        likely = logits.log_softmax(-1)
        sums.append(float(likely[range(len(ids)), ids].sum()))
        greedy.append(likely.argmax(-1).tolist() == list(ids))
    return sums, greedy


@pytest.mark.law
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_full_kv_scores_as_the_model_itself(architecture):
    model, context = tiny_model(architecture), prompt(90)[0].tolist()
    with torch.no_grad():
        best = int(model(torch.tensor([context])).logits[0, -1].argmax())
    continuations = [*CONTINUATIONS, [best]]
    forced = score_continuations(model, POLICIES["full"](16), context, continuations, backend="reference")
    sums, greedy = dense_sums(model, context, continuations)
    assert forced.log_likelihoods == pytest.approx(sums, abs=1e-3)
    assert forced.greedy == greedy
    assert greedy[-1]
    assert forced.sparse_steps == 0


@pytest.mark.law
@pytest.mark.parametrize("name", ["rocketkv", "rocketkv_mt", "snapkv", "quest", "sparq_mean", "streamingllm"])
def test_a_row_scores_as_alone_and_by_its_own_steps(llama, name):
    policy, context = POLICIES[name](32), prompt(150)[0].tolist()
    together = score_continuations(llama, policy, context, CONTINUATIONS, backend="reference")
    alone = [score_continuations(llama, policy, context, [ids], backend="reference") for ids in CONTINUATIONS]
    values = [forced.log_likelihoods[0] for forced in alone]
    assert together.log_likelihoods == pytest.approx(values, abs=1e-3)
    # Every token of every continuation was predicted by a decode step of both layers.
    for forced, ids in zip(alone, CONTINUATIONS, strict=True):
        assert forced.sparse_steps + forced.dense_steps == 2 * len(ids)
    if not policy.slots[1].reads_all:
        assert all(forced.dense_steps == 0 for forced in alone)
    dense, _ = dense_sums(llama, context, CONTINUATIONS)
    assert max(abs(a - b) for a, b in zip(values, dense, strict=True)) > 0.05


def test_the_first_token_of_a_continuation_is_judged_by_a_sparse_step(llama):
    """One token after a long context: its value is what the masked full cache gives for the sparse step."""
    context = prompt(150)[0].tolist()
    forced = score_continuations(llama, POLICIES["rocketkv"](32), context, [[5]], backend="reference")
    oracle = Oracle(llama, budget_tokens=32)
    oracle.prompt(torch.tensor([context[:-1]]))
    expected = oracle.step(torch.tensor([context[-1:]])).log_softmax(-1)[0, 5]
    assert forced.log_likelihoods[0] == pytest.approx(float(expected), abs=1e-3)


def test_a_context_of_one_token_is_read(llama):
    forced = score_continuations(llama, POLICIES["rocketkv"](32), [3], [[5, 6]], backend="reference")
    sums, _ = dense_sums(llama, [3], [[5, 6]])
    assert forced.log_likelihoods == pytest.approx(sums, abs=1e-4)


@pytest.mark.parametrize(("context", "continuations"), [([], [[1]]), ([1], [[]]), ([1], [[2], []])])
def test_nothing_to_read_or_to_force_is_refused(llama, context, continuations):
    with pytest.raises(ValueError, match="at least one token"):
        score_continuations(llama, POLICIES["full"](16), context, continuations)
