"""A row's result does not depend on its neighbours; beams, repeats and selections carry all state with
them.
"""

import pytest
import torch

import rocketkv
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from support.bounds import assert_bounds_are_true
from support.models import DTYPES, greedy, left_padded, prompt, tiny_model
from support.policies import COMPRESSING, POLICIES, SINGLE
from support.trace import Trace

pytestmark = pytest.mark.law
LENGTHS = [130, 41, 64, 7, 40]
"""Evicted; sparse from the first step; evicted less; shorter than every window; sparse while answering."""


def steps_of(trace: Trace, ids: torch.Tensor, mask: torch.Tensor | None, answer: torch.Tensor) -> list[torch.Tensor]:
    """Logits of the prompt's end and of every forced token."""
    return [trace.prompt(ids, mask), *(trace.step(answer[:, i : i + 1]) for i in range(answer.shape[1]))]


def assert_same_choices(batch: Trace, row: int, alone: Trace, shift: int) -> None:
    """The row keeps and reads the same tokens as alone; `shift` columns of padding stand before it in the
    batch.
    """
    for (layer, _, head), columns in alone.kept.items():
        assert batch.kept[layer, row, head] == [column + shift for column in columns]
    for together, single in zip(batch.reads, alone.reads, strict=True):
        assert {(layer, head) for layer, r, head in together if r == row} == {(layer, h) for layer, _, h in single}
        for (layer, _, head), columns in single.items():
            assert together[layer, row, head] == [column + shift for column in columns]


@pytest.mark.parametrize("name", COMPRESSING)
def test_a_row_in_a_batch_is_the_row_alone(name: str) -> None:
    model = tiny_model("llama")
    rows = [prompt(tokens, seed=number) for number, tokens in enumerate(LENGTHS)]
    answer = prompt(5, seed=9, rows=len(rows))
    batch = Trace(model, COMPRESSING[name](40))
    together = steps_of(batch, *left_padded(rows), answer)
    for row, ids in enumerate(rows):
        alone = Trace(model, COMPRESSING[name](40))
        single = steps_of(alone, ids, None, answer[row : row + 1])
        assert_same_choices(batch, row, alone, max(LENGTHS) - LENGTHS[row])
        for expected, found in zip(single, together, strict=True):
            torch.testing.assert_close(found[row], expected[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_row_in_a_batch_in_half_precision(dtype: str) -> None:
    # Padding moves a row's matrices to other blocks of the same product, so hidden states agree to roundings
    # only, and a choice may flip where two scores are equal to the dtype: the result is compared, not the
    # choice.
    model = tiny_model("llama", DTYPES[dtype])
    rows = [prompt(tokens, seed=number) for number, tokens in enumerate((90, 52))]
    together = rocketkv.generate(model, POLICIES["rocketkv"](48), **inputs_of(rows), **greedy(1))
    for row, ids in enumerate(rows):
        alone = rocketkv.generate(model, POLICIES["rocketkv"](48), input_ids=ids, **greedy(1))
        slack = 32 * torch.finfo(model.dtype).eps * float(alone.logits[0].abs().max())
        torch.testing.assert_close(together.logits[0][row], alone.logits[0][0], atol=slack, rtol=0)


@pytest.mark.parametrize("name", POLICIES)
def test_twice_is_the_same(name: str) -> None:
    model, ids = tiny_model("llama"), prompt(150)
    once, again = (rocketkv.generate(model, POLICIES[name](40), input_ids=ids, **greedy(8)) for _ in range(2))
    assert torch.equal(once.sequences, again.sequences)
    assert all(torch.equal(a, b) for a, b in zip(once.logits, again.logits, strict=True))


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        *(("llama", name) for name in [*SINGLE, "adakv+hsa", "snapkv+quest", "snapkv+loki"]),
        *(("gemma3", name) for name in ("rocketkv", "rocketkv_mt", "quest", "adakv")),
    ],
)
def test_beams_equal_beams_over_recomputed_histories(architecture: str, name: str) -> None:
    # The law: whatever beam search keeps, each beam's logits are those of its own history, replayed alone.
    # Replaying the winner must give the score that beam search gave it.
    model, policy, ids = tiny_model(architecture), COMPRESSING[name](40), prompt(90)
    options = greedy(8, num_beams=3, num_return_sequences=3, output_scores=True, length_penalty=0.0)
    beams = rocketkv.generate(model, policy, input_ids=ids, **options)
    assert len({tuple(sequence.tolist()) for sequence in beams.sequences}) == 3
    for sequence, score in zip(beams.sequences, beams.sequences_scores, strict=True):
        answer = sequence[None, 90:]
        logits = steps_of(Trace(model, policy), ids, None, answer[:, :-1])
        total = sum(
            float(step[0].log_softmax(-1)[token]) for step, token in zip(logits, answer[0].tolist(), strict=True)
        )
        assert total == pytest.approx(float(score), abs=1e-3)


def inputs_of(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keyword arguments of one left-padded batch."""
    ids, mask = left_padded(rows)
    return {"input_ids": ids, "attention_mask": mask}


EDITS = {
    "reorder": (lambda cache, index: cache.reorder_cache(index), [2, 0, 0]),
    "select": (lambda cache, index: cache.batch_select_indices(index), [2, 1]),
    "select_one": (lambda cache, index: cache.batch_select_indices(index), [1]),
    "repeat": (lambda cache, index: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
}


@pytest.mark.parametrize("lengths", [(100, 41, 30), (30, 20, 10), (38, 37, 30)], ids=["mixed", "dense", "turning"])
@pytest.mark.parametrize("edit", EDITS)
def test_editing_the_batch_moves_all_state(edit: str, lengths: tuple[int, ...]) -> None:
    model, policy = tiny_model("llama"), POLICIES["rocketkv"](40)
    change, order = EDITS[edit]
    rows = [prompt(tokens, seed=number) for number, tokens in enumerate(lengths)]
    first, then = prompt(4, seed=8, rows=3), prompt(70, seed=9, rows=len(order))
    ids, mask = left_padded(rows)

    def feed(cache: CompressedCache, token: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.cat([mask, torch.ones(token.shape, dtype=mask.dtype)], 1)
        positions = (mask.cumsum(-1) - 1)[:, -token.shape[1] :]
        out = model(token, attention_mask=mask, position_ids=positions, **cache.kwargs).logits[:, -1]
        return mask, out

    with attach(model), torch.no_grad():
        edited, built = CompressedCache(model, policy), CompressedCache(model, policy)
        order_index = torch.tensor(order)
        starts = {
            edited: (ids, mask, first),
            built: (ids[order_index], mask[order_index], first[order_index]),
        }
        masks = {}
        for cache, (prompt_ids, prompt_mask, answer) in starts.items():
            empty = prompt_mask[:, :0]
            positions = (prompt_mask.cumsum(-1) - 1).clamp(min=0)
            assert empty.shape[1] == 0
            model(prompt_ids, attention_mask=prompt_mask, position_ids=positions, **cache.kwargs)
            masks[cache] = prompt_mask
            for column in range(answer.shape[1]):
                masks[cache], _ = feed(cache, answer[:, column : column + 1], masks[cache])
        change(edited, order_index)
        masks[edited] = masks[edited][order_index]
        # Long enough for stores to grow and pages to be laid out again.
        for column in range(then.shape[1]):
            token = then[:, column : column + 1]
            masks[edited], one = feed(edited, token, masks[edited])
            masks[built], two = feed(built, token, masks[built])
            torch.testing.assert_close(one, two, atol=2e-4, rtol=1e-4)
            if column in (0, 5, 69):
                assert_bounds_are_true(edited)
    assert edited.report().tokens_seen == built.report().tokens_seen
    assert edited.report().sparse_steps > 0


def test_repeated_rows_do_not_share_memory() -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, POLICIES["rocketkv"](40))
    with attach(model), torch.no_grad():
        model(prompt(90), **cache.kwargs)
        model(prompt(1), **cache.kwargs)
        cache.batch_repeat_interleave(2)
        one = model(torch.tensor([[5], [60]]), **cache.kwargs).logits
        assert not torch.equal(one[0], one[1])
        state = cache.states[0]
        last = state.kv.starts + state.kv.lengths - 1
        assert not torch.equal(state.kv.keys[last[0]], state.kv.keys[last[1]])
    assert_bounds_are_true(cache)


def test_each_row_may_have_its_own_policy() -> None:
    model = tiny_model("llama")
    policies = [POLICIES[name](budget) for name, budget in (("rocketkv", 40), ("full", 0), ("small_window", 20))]
    rows = [prompt(tokens, seed=number) for number, tokens in enumerate((90, 70, 110))]
    cache = CompressedCache(model, policies)
    together = rocketkv.generate(model, policies, cache=cache, **inputs_of(rows), **greedy(6))
    kept = cache.report().kept_tokens
    for row, (policy, ids) in enumerate(zip(policies, rows, strict=True)):
        single = CompressedCache(model, policy)
        alone = rocketkv.generate(model, policy, cache=single, input_ids=ids, **greedy(6))
        assert kept[row] == single.report().kept_tokens[0]
        assert torch.equal(together.sequences[row, 110:], alone.sequences[0, ids.shape[1] :])
        for found, expected in zip(together.logits, alone.logits, strict=True):
            torch.testing.assert_close(found[row], expected[0], atol=1e-4, rtol=1e-4)


def test_policies_that_do_not_fit_the_batch() -> None:
    model, policy = tiny_model("llama"), POLICIES["rocketkv"](40)
    with pytest.raises(ValueError, match="2 policies for a batch of 3"):
        rocketkv.generate(model, [policy, policy], input_ids=prompt(50, rows=3), **greedy(2))
    with pytest.raises(ValueError, match="no policy"):
        CompressedCache(model, [])
