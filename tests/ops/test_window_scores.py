"""Votes of the observation window, the score that eviction sorts by."""

import math

import numpy as np
import pytest
import torch

from support import spec
from support.backends import on_backend

window_scores = on_backend("window_scores", "window_scores")


def test_by_hand() -> None:
    # Keys 0, log 2, 0, 0 and a window of the last two; both queries are 1. Query at position 2 sees weights 1
    # 2 1 (of 4), the one at position 3 sees 1 2 1 1 (of 5). Votes for the tokens before the window: 1/4 +
    # 1/5, 2/4 + 2/5.
    keys = torch.tensor([[[[0.0], [math.log(2)], [0.0], [0.0]]]])
    queries = torch.ones(1, 1, 1, 2, 1)
    found = window_scores(queries, torch.tensor([2]), keys, torch.tensor([[4]]), scaling=1.0)
    np.testing.assert_allclose(found[0, 0, :2].numpy(), [0.45, 0.9], rtol=1e-6)
    assert found[0, 0, 2:].tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_ragged_rows_equal_the_specification(dtype: torch.dtype) -> None:
    batch, heads, group, window, head_dim, columns = 3, 2, 3, 4, 8, 19
    counts = torch.tensor([[19, 19], [9, 9], [5, 12]])
    query_counts = torch.tensor([4, 2, 4])
    queries = torch.randn(batch, heads, group, window, head_dim).to(dtype)
    keys = torch.randn(batch, heads, columns, head_dim).to(dtype)
    for b in range(batch):
        queries[b, :, :, : window - query_counts[b]] = math.nan
        for g in range(heads):
            keys[b, g, : columns - counts[b, g]] = math.inf
    found = window_scores(queries, query_counts, keys, counts, scaling=0.3)
    assert not bool(found.isnan().any())
    # The softmax runs in float32 from exact inputs, whatever the dtype; logits are below 8.
    tolerance = 64 * torch.finfo(found.dtype).eps
    for b in range(batch):
        own = int(query_counts[b])
        for g in range(heads):
            held = int(counts[b, g])
            q, k = (
                queries[b, g, :, window - own :].double().numpy(),
                keys[b, g, columns - held :].double().numpy(),
            )
            expected = spec.window_votes(q, k, 0.3)
            np.testing.assert_allclose(found[b, g, columns - held : columns - own].numpy(), expected, rtol=tolerance)
            assert int((found[b, g] > -math.inf).sum()) == held - own


@pytest.mark.parametrize(("held", "own"), [(1, 1), (3, 3), (3, 4), (0, 0), (5, 0)])
def test_nothing_before_the_window_scores_nothing(held: int, own: int) -> None:
    found = window_scores(
        torch.randn(1, 1, 2, 4, 4),
        torch.tensor([own]),
        torch.randn(1, 1, 5, 4),
        torch.tensor([[held]]),
        scaling=1.0,
    )
    assert bool((found == -math.inf).all())


def test_a_window_longer_than_the_columns() -> None:
    queries, keys = torch.randn(1, 1, 2, 8, 4), torch.randn(1, 1, 5, 4)
    found = window_scores(queries, torch.tensor([3]), keys, torch.tensor([[5]]), scaling=0.5)
    expected = spec.window_votes(queries[0, 0, :, 5:].double().numpy(), keys[0, 0].double().numpy(), 0.5)
    np.testing.assert_allclose(found[0, 0, :2].numpy(), expected, rtol=1e-5)
