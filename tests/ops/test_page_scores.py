"""Page scores: which share of attention a page's tokens are estimated to receive."""

import math

import numpy as np
import pytest
import torch

from rocketkv.ops.page_bounds.reference import build_page_bounds
from rocketkv.types import RaggedKV
from support import spec
from support.backends import on_backend
from support.ragged import ragged_kv, segment, slots_of

page_scores = on_backend("page_scores", "page_scores")


def scores_of(q: torch.Tensor, kv: RaggedKV, pages: list[int], rank: list[list[int]], scaling: float) -> torch.Tensor:
    bounds = build_page_bounds(kv.keys, slots_of(kv), kv.lengths, torch.tensor(pages), kv.capacities)
    return page_scores(q, bounds, kv.lengths, rank=torch.tensor(rank), scaling=scaling)


def one_head(keys: list[list[float]]) -> RaggedKV:
    held = torch.tensor(keys)
    return RaggedKV(held, held, torch.zeros(1, 1).long(), torch.tensor([[len(keys)]]), torch.tensor([[len(keys)]]))


def test_by_hand() -> None:
    # Two query heads [3, 1] and [-1, 1]. |q| summed: [4, 2]; rank 1 reads dimension 0. q summed there is 2,
    # so the maximum is read: pages {1, 0} -> 1 and {2} -> 2. Head 0 keeps 3/4 of its |q|, head 1 half.
    kv = one_head([[1.0, 9.0], [0.0, -9.0], [2.0, 5.0]])
    q = torch.tensor([[[[3.0, 1.0], [-1.0, 1.0]]]])
    found = scores_of(q, kv, [2], [[1]], scaling=0.5)
    expected = []
    for value, share in ((3.0, 0.75), (-1.0, 0.5)):
        first, second = (math.exp(value * bound * 0.5 / math.sqrt(share)) for bound in (1.0, 2.0))
        expected.append([first / (2 * first + second), second / (2 * first + second)])
    np.testing.assert_allclose(found[0, 0].numpy(), np.mean(expected, 0), rtol=1e-6)


def test_the_sign_of_the_summed_query_picks_the_bound() -> None:
    # Summed query: -1 on dimension 0, so the minimum is read although head 0 is positive there. Page 0 spans
    # -4 to 4, page 1 is 1 throughout: by minima page 1 looks better to head 0, by maxima page 0 would.
    kv = one_head([[4.0], [-4.0], [1.0], [1.0]])
    q = torch.tensor([[[[1.0], [-2.0]]]])
    found = scores_of(q, kv, [2], [[1]], scaling=1.0)[0, 0]
    logits = np.array([[1.0 * b for b in (-4, 1)], [-2.0 * b for b in (-4, 1)]])
    expected = np.exp(logits) / (2 * np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(found.numpy(), expected.mean(0), rtol=1e-6)


def test_a_summed_query_of_zero_reads_the_maximum() -> None:
    kv = one_head([[1.0], [-3.0], [0.5], [0.5]])
    q = torch.tensor([[[[1.0], [-1.0]]]])
    found = scores_of(q, kv, [2], [[1]], scaling=1.0)[0, 0]
    logits = np.array([[1.0, 0.5], [-1.0, -0.5]])
    expected = np.exp(logits) / (2 * np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(found.numpy(), expected.mean(0), rtol=1e-6)


def test_a_zero_query_sees_every_token_alike() -> None:
    kv = ragged_kv([[7, 5]], 4)
    found = scores_of(torch.zeros(1, 2, 3, 4), kv, [3], [[2, 4]], scaling=0.5)
    np.testing.assert_allclose(found[0, 0].numpy(), [1 / 7] * 3, rtol=1e-6)
    np.testing.assert_allclose(found[0, 1, :2].numpy(), [1 / 5] * 2, rtol=1e-6)
    assert found[0, 1, 2] == -math.inf


def test_one_head_of_zeros_beside_another() -> None:
    kv = ragged_kv([[6]], 4)
    q = torch.randn(1, 1, 2, 4)
    q[0, 0, 1] = 0
    found = scores_of(q, kv, [2], [[2]], scaling=0.5)[0, 0].double().numpy()
    expected = spec.token_scores(q[0, 0].double().numpy(), segment(kv, 0, 0)[0], 2, 2, 0.5)
    np.testing.assert_allclose(np.repeat(found, 2), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("pages", [[1, 1, 1], [2, 3, 5], [1, 64, 2]])
def test_equals_the_specification(pages: list[int], group: int, dtype: torch.dtype) -> None:
    lengths = [[1, 13], [7, 30], [29, 8]]
    head_dim, scaling = 8, 0.31
    ranks = [[1, 8], [3, 5], [8, 1]]
    kv = ragged_kv(lengths, head_dim, dtype=dtype)
    q = torch.randn(3, 2, group, head_dim).to(dtype)
    found = scores_of(q, kv, pages, ranks, scaling)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    # Inputs are exact in both; what is left is the rounding of float32 (float64) logits: |logit| below 16
    # here, and an error of a few units of 16 eps in a logit is that relative error in a probability.
    tolerance = 8 * 16 * torch.finfo(found.dtype).eps
    for b, row in enumerate(lengths):
        for g, length in enumerate(row):
            keys, _ = segment(kv, b, g)
            expected = spec.token_scores(q[b, g].double().numpy(), keys, pages[b], ranks[b][g], scaling)
            per_token = found[b, g].double().numpy()[np.arange(length) // pages[b]]
            np.testing.assert_allclose(per_token, expected, rtol=tolerance)
            assert per_token.sum() == pytest.approx(1, rel=1e-5)
            in_use = -(-length // pages[b])
            assert bool((found[b, g, in_use:] == -math.inf).all())


def test_an_empty_segment_has_no_scores() -> None:
    kv = ragged_kv([[5, 0]], 4)
    found = scores_of(torch.randn(1, 2, 2, 4), kv, [2], [[2, 1]], scaling=0.5)
    assert bool((found[0, 1] == -math.inf).all())
    assert bool(found[0, 0].isfinite().all())


def test_large_queries_do_not_overflow() -> None:
    kv = ragged_kv([[9]], 4, dtype=torch.float16)
    kv.keys[kv.starts[0, 0] : kv.starts[0, 0] + 9] *= 1000
    q = (torch.randn(1, 1, 2, 4) * 1000).half()
    found = scores_of(q, kv, [2], [[4]], scaling=1.0)
    assert bool(found.isfinite().all())
