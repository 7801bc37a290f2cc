"""From page scores to tokens: score descending, then position ascending; at most one page in part."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support import spec
from support.backends import on_backend

topk_tokens = on_backend("topk_tokens", "topk_tokens")

NO = -math.inf


def taken(scores: list[float], length: int, page: int, count: int, **always: int) -> list[int]:
    chosen = topk_tokens(
        torch.tensor([[scores]]),
        torch.tensor([[length]]),
        torch.tensor([page]),
        torch.tensor([[count]]),
        **always,
    )
    assert chosen.shape == (1, 1, count)
    return chosen[0, 0].tolist()


def test_by_hand() -> None:
    # Pages of three: {0 1 2} {3 4 5} {6 7}. The best page is the ragged one, then page 1, of which two are
    # left.
    assert taken([0.1, 0.2, 0.3], 8, 3, 4) == [3, 4, 6, 7]


def test_ties_go_to_lower_positions() -> None:
    assert taken([0.5, 0.5, 0.5], 6, 2, 3) == [0, 1, 2]
    assert taken([0.1, 0.5, 0.5], 6, 2, 3) == [2, 3, 4]


def test_sinks_and_locals_come_first_and_count() -> None:
    assert taken([0.0, 0.9, 0.8, 0.0], 8, 2, 4, sink_tokens=1, local_tokens=2) == [0, 2, 6, 7]


def test_everything() -> None:
    assert taken([0.3, 0.1], 5, 3, 5) == [0, 1, 2, 3, 4]


def test_one_token() -> None:
    assert taken([1.0], 1, 7, 1) == [0]


def test_rows_and_heads_are_independent() -> None:
    scores = torch.tensor([[[0.1, 0.9, 0.3], [0.7, NO, NO]], [[0.2, 0.1, NO], [0.1, 0.2, 0.3]]])
    lengths, counts = torch.tensor([[3, 1], [5, 9]]), torch.tensor([[2, 1], [4, 5]])
    found = topk_tokens(scores, lengths, torch.tensor([1, 3]), counts)
    assert found[0, 0, :2].tolist() == [1, 2]
    assert found[0, 1, :1].tolist() == [0]
    assert found[1, 0, :4].tolist() == [0, 1, 2, 3]
    assert found[1, 1, :5].tolist() == [3, 4, 6, 7, 8]
    assert found[0, 0, 2:].tolist() == [0, 0, 0]


def test_an_empty_segment_takes_nothing() -> None:
    scores = torch.tensor([[[0.1, 0.9], [NO, NO]]])
    found = topk_tokens(scores, torch.tensor([[4, 0]]), torch.tensor([2]), torch.tensor([[2, 0]]))
    assert found.tolist() == [[[2, 3], [0, 0]]]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_equals_the_specification(data: st.DataObject) -> None:
    length, page = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9))
    count = data.draw(st.integers(1, length))
    sink, local = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 5))
    pages = -(-length // page)
    # Few different values, so that ties are common.
    scores = data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=pages, max_size=pages))
    per_token = np.array(scores)[np.arange(length) // page]
    sink, local = min(sink, count), min(local, max(0, count - sink))
    expected = spec.best_tokens(per_token, count, sink=sink, local=local)
    assert taken(scores, length, page, count, sink_tokens=sink, local_tokens=local) == expected


@pytest.mark.parametrize("count", [1, 2, 3])
def test_forced_tokens_beyond_the_count_leave_the_newest_in(count: int) -> None:
    found = taken([0.1, 0.2, 0.3, 0.4], 4, 1, count, local_tokens=4)
    assert found == list(range(4 - count, 4))
