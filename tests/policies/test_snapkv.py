"""SnapKV per group: which prompt tokens stay."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketkv.policies.base import Prompt
from rocketkv.policies.snapkv import SnapKV, best_columns, pool
from support import spec

NO = -math.inf


def test_pooling_by_hand() -> None:
    scores = torch.tensor([[[NO, 1.0, 5.0, 2.0, 0.0, 0.0, NO, NO]]])
    assert pool(scores, 3, "max")[0, 0].tolist() == [NO, 5, 5, 5, 2, 0, NO, NO]
    mean = pool(scores, 3, "avg")[0, 0].tolist()
    assert mean == pytest.approx([NO, 3, 8 / 3, 7 / 3, 2 / 3, 0, NO, NO])
    assert torch.equal(pool(scores, 1, "max"), scores)


def test_ties_go_to_lower_positions() -> None:
    scores = torch.tensor([[[NO, 2.0, 1.0, 2.0, 2.0, 2.0, NO]]])
    chosen = best_columns(scores, torch.tensor([[3]]))
    assert chosen[0, 0].nonzero()[:, 0].tolist() == [1, 3, 4]


def test_no_candidate_is_ever_chosen_beyond_those_there_are() -> None:
    scores = torch.tensor([[[NO, 2.0, 1.0, NO], [NO, NO, NO, NO]]])
    assert best_columns(scores, torch.tensor([[9]])).sum(-1).tolist() == [[2, 0]]
    assert best_columns(scores, torch.tensor([[0]])).sum().item() == 0


def test_the_window_and_what_it_looks_at_stay() -> None:
    # One head, one dimension: the last query looks hard at token 1 and a little at token 4.
    keys = torch.tensor([[0.0], [9.0], [0.0], [0.0], [5.0], [0.0], [0.0]]).view(1, 1, 7, 1)
    queries = torch.ones(1, 1, 1, 2, 1)
    prompt = Prompt(queries, torch.tensor([2]), keys, keys, torch.tensor([[7]]), 1.0, 0, 1)
    kept = SnapKV(window_tokens=2, pool_tokens=1).keep(prompt, torch.tensor([4]))
    assert kept[0, 0].nonzero()[:, 0].tolist() == [1, 4, 5, 6]
    kept = SnapKV(window_tokens=2, pool_tokens=3).keep(prompt, torch.tensor([5]))
    assert kept[0, 0].nonzero()[:, 0].tolist() == [0, 1, 2, 5, 6]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_equals_the_specification_on_ragged_rows(data: st.DataObject) -> None:
    window, columns = data.draw(st.integers(1, 6)), 40
    counts = data.draw(st.lists(st.integers(window + 2, columns), min_size=2, max_size=2))
    kept = [data.draw(st.integers(window + 1, count - 1)) for count in counts]
    width, kind = data.draw(st.sampled_from([1, 3, 7, 63])), data.draw(st.sampled_from(["max", "avg"]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    queries = torch.randn(2, 2, 3, window, 8, generator=generator)
    keys = torch.randn(2, 2, columns, 8, generator=generator)
    for row, count in enumerate(counts):
        keys[row, :, : columns - count] = math.nan
    held = torch.tensor(counts)[:, None].expand(-1, 2)
    prompt = Prompt(queries, torch.tensor([window, window]), keys, keys, held, 0.4, 0, 1)
    found = SnapKV(window_tokens=window, pool_tokens=width, pooling=kind).keep(prompt, torch.tensor(kept))
    for row, count in enumerate(counts):
        for head in range(2):
            own_keys = keys[row, head, columns - count :].double().numpy()
            votes = spec.window_votes(queries[row, head].double().numpy(), own_keys, 0.4)
            scores = spec.pooled(votes, width, kind)
            chosen = (found[row, head].nonzero()[:, 0] - (columns - count)).tolist()
            assert chosen[-window:] == list(range(count - window, count))
            if chosen != spec.kept_tokens(scores, window, kept[row]):
                assert spec.right_choice(scores, chosen[:-window], kept[row] - window, 1e-5)
            np.testing.assert_array_less(-1, chosen)
