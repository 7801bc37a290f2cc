"""An inspected answer: what was kept and read, against a trace that wraps evictor and selector."""

import numpy as np
import pytest
import torch

from rocketkv.evals.inspection import Inspection, inspect_answer
from rocketkv.evals.token_text import wanted
from rocketkv.evals.verdict import average_pairs, describe, judge, place_of
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.together import answer_together
from rocketkv.policies.full import FullKV
from support.models import prompt, tiny_model
from support.policies import POLICIES
from support.trace import Trace

TOKENS, BUDGET, NEW = 120, 40, 6
NAMES = [
    "rocketkv", "rocketkv_mt", "snapkv", "adakv", "duoattention", "quest", "exact_head", "sparq_mean", "loki",
    "adakv+hsa", "first_layer_whole", "split_0",
]  # fmt: skip


def inspected(name: str, tokens: int = TOKENS, **options) -> Inspection:
    ids = prompt(tokens)[0].tolist()
    return inspect_answer(tiny_model("llama"), POLICIES[name](BUDGET), ids, max_new_tokens=NEW, **options)


@pytest.mark.parametrize("name", NAMES)
def test_kept_and_read_are_those_of_a_trace(name) -> None:
    found = inspected(name, full=False)
    trace = Trace(tiny_model("llama"), POLICIES[name](BUDGET))
    trace.prompt(prompt(TOKENS))
    layers, heads, _ = found.kept.shape
    for layer in range(layers):
        for head in range(heads):
            assert found.kept[layer, head].nonzero()[0].tolist() == trace.kept[layer, 0, head]
    for step, token in enumerate(found.answer_ids[:-1]):
        trace.step(torch.tensor([[token]]))
        mine = found.step_reads(step)
        assert mine.shape == (layers, found.reads.shape[2], TOKENS + step + 1)
        for layer in range(layers):
            chosen = [head for at, _, head in trace.reads[step] if at == layer]
            for head in range(found.reads.shape[2]):
                group = head * heads // found.reads.shape[2]
                read = trace.kept[layer, 0, group]  # where nothing was selected, everything held
                if chosen:
                    read = trace.reads[step][layer, 0, head * (max(chosen) + 1) // found.reads.shape[2]]
                assert mine[layer, head].nonzero()[0].tolist() == read


def test_the_answer_is_the_policys_own_and_the_full_caches_stands_beside() -> None:
    found = inspected("rocketkv")
    policies = [POLICIES["rocketkv"](BUDGET), FullKV()]
    alone = [answer_together(tiny_model("llama"), [p], prompt(TOKENS), max_new_tokens=NEW) for p in policies]
    assert [found.answer_ids, found.full_ids] == [one.new_tokens[0] for one in alone]
    assert found.steps == NEW - 1 and found.layers == [0, 1] and found.pairs == 4


def test_attention_is_the_full_caches() -> None:
    found, model = inspected("rocketkv"), tiny_model("llama", attention="eager")
    ids = torch.tensor([[*found.prompt_ids, *found.full_ids[:-1]]])
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions  # L of [1, G R, q, q]
    for layer, mine in enumerate(found.attention):
        steps = weights[layer][0, :, TOKENS:, :TOKENS].mean(1)  # [G R, P]
        np.testing.assert_allclose(mine, steps.view(2, 2, -1).mean(1), atol=1e-5)


def test_ragged_heads_keep_as_many_as_the_store_says() -> None:
    found, cache = inspected("adakv", full=False), CompressedCache(tiny_model("llama"), POLICIES["adakv"](BUDGET))
    with attach(tiny_model("llama")), torch.no_grad():
        tiny_model("llama")(prompt(TOKENS), **cache.kwargs)
    lengths = [state.kv.lengths[0].tolist() for state in cache.states]
    assert found.kept.sum(-1).tolist() == lengths
    assert len({count for row in lengths for count in row}) > 1


def test_whole_layers_read_everything() -> None:
    assert inspected("full").reads_everything().all() and inspected("full").full_ids is None
    assert inspected("rocketkv", tokens=20).reads_everything().all()
    assert inspected("first_layer_whole").reads_everything().tolist() == [[True] * 2, [False] * 2]
    assert inspected("duoattention").reads_everything().tolist() == [[True, False], [False, True]]
    assert inspect_answer(tiny_model("gemma3"), FullKV(), prompt(50)[0].tolist(), max_new_tokens=2).layers == [1, 2]


def test_query_heads_that_read_alike_are_noted_once() -> None:
    assert inspected("exact_head").reads.shape[2] == 4 and inspected("rocketkv").reads.shape[2] == 2
    assert inspected("exact_head").prompt_reads().shape == (2, 2, TOKENS)


def test_a_single_token_takes_no_step() -> None:
    found = inspect_answer(tiny_model("llama"), POLICIES["rocketkv"](40), prompt(90)[0].tolist(), max_new_tokens=1)
    assert found.steps == 0 and found.attention is None and not found.prompt_reads().any()
    with pytest.raises(ValueError, match="at least one of each"):
        inspect_answer(tiny_model("llama"), FullKV(), [], max_new_tokens=1)


def by_hand(kept, read, attention=None) -> Inspection:
    """One layer, two heads, four prompt tokens and one decode step."""
    reads = np.packbits(np.array(read, bool)[None, None], axis=-1, bitorder="little")
    weights = None if attention is None else np.array([attention], np.float32)
    return Inspection([1, 2, 3, 4], [5, 6], [0], np.array([kept], bool), reads, None, weights)


KEPT, READ = [[1, 1, 0, 0], [0, 1, 0, 1]], [[1, 1, 0, 0, 1], [0, 0, 0, 1, 1]]


def test_what_became_of_a_place_by_hand() -> None:
    found = by_hand(KEPT, READ, [[0.1, 0.2, 0, 0], [0, 0.6, 0.2, 0]])
    place = place_of(found, 1, 3)  # tokens 1 and 2: kept by 2 and 0 heads, read by 1 and 0
    assert (place.kept_pairs, place.read_pairs) == (1.0, 0.5)
    assert place.kept_share == pytest.approx(0.8) and place.read_share == pytest.approx(0.2)
    assert average_pairs(found) == (1.0, 0.75)
    assert place_of(by_hand(KEPT, READ), 1, 3).kept_share is None


@pytest.mark.parametrize(
    ("span", "answer", "full_answer", "attention", "label", "tone"),
    [
        ((0, 1), "it is 42", None, None, "right", "right"),
        ((2, 3), "43", None, None, "wrong: evicted", "lost"),
        ((1, 2), "43", None, None, "wrong: read, the model's own failure", "model"),
        ((1, 2), "43", "44", None, "wrong: the model's own failure", "model"),
        ((1, 2), "43", "42", [[0, 0.1, 0, 0], [0, 0.8, 0, 0]], "wrong: kept but not read", "lost"),
        ((1, 2), "43", "42", [[0, 0.8, 0, 0], [0, 0.1, 0, 0]], "wrong: kept and read", "lost"),
        ((0, 1), "43", "42", [[0.1, 0, 0, 0], [0.8, 0, 0, 0]], "wrong: evicted", "lost"),
        (None, "43", "42", None, "wrong", "lost"),
    ],
)
def test_verdicts_by_hand(span, answer, full_answer, attention, label, tone) -> None:
    marked = [] if span is None else [span]
    verdict = judge(by_hand(KEPT, READ, attention), "42", wanted("42"), marked, answer, full_answer)
    assert (verdict.label, verdict.tone) == (label, tone)
    assert f"{'holds' if label == 'right' else 'does not hold'} “42”" in verdict.sentences[0]


def test_kept_but_not_read_without_the_full_cache() -> None:
    kept, read = [[1, 1, 0, 0], [0, 1, 0, 0]], [[1, 0, 0, 0, 1], [0, 0, 0, 0, 1]]
    assert judge(by_hand(kept, read), "42", wanted("42"), [(1, 2)], "no", None).label == "wrong: kept but not read"


def test_the_best_of_several_places_counts() -> None:
    verdict = judge(by_hand(KEPT, READ), "42", wanted("42"), [(2, 3), (1, 2)], "43", None)
    assert "Of its 2 places in the prompt the best off is token 2 of 4" in verdict.sentences[1]
    neutral = describe(by_hand(KEPT, READ)).sentences[0]
    assert "kept by 1.0 of 2 layer × head pairs" in neutral and "read by 0.8 of them" in neutral


def test_where_everything_was_read_the_model_failed() -> None:
    verdict = judge(by_hand(np.ones((2, 4)), np.ones((2, 5))), "42", wanted("42"), [(0, 1)], "43", None)
    assert "the model itself" in verdict.sentences[-1] and "Nothing was evicted" in verdict.sentences[1]
