"""Exact attention over chosen tokens."""

import math

import numpy as np
import pytest
import torch

from rocketkv.types import RaggedKV
from support import spec
from support.backends import on_backend
from support.ragged import ragged_kv, segment

attend = on_backend("attend", "attend")


def test_by_hand() -> None:
    # Keys 0 and log 3 with scaling 1 weigh 1/4 and 3/4; the third token is not read, whatever it holds.
    keys = torch.tensor([[0.0], [math.log(3)], [50.0]])
    values = torch.tensor([[4.0, 0.0], [8.0, 4.0], [math.nan, math.inf]])
    kv = RaggedKV(keys, values, torch.zeros(1, 1).long(), torch.tensor([[3]]), torch.tensor([[3]]))
    out = attend(torch.ones(1, 1, 1, 1), kv, torch.tensor([[[0, 1]]]), torch.tensor([[2]]), scaling=1.0)
    torch.testing.assert_close(out, torch.tensor([[[[7.0, 3.0]]]]))


def test_a_count_of_zero_gives_zeros() -> None:
    kv = ragged_kv([[3, 0]], 4)
    out = attend(torch.randn(1, 2, 2, 4), kv, torch.zeros(1, 2, 3).long(), torch.tensor([[3, 0]]), scaling=0.5)
    assert bool((out[0, 1] == 0).all())
    assert bool(out[0, 0].isfinite().all())


def test_entries_behind_the_count_are_never_read() -> None:
    kv = ragged_kv([[6, 6]], 4)
    for slot, bad in ((4, math.inf), (5, math.nan)):
        kv.keys[kv.starts + slot] = bad
        kv.values[kv.starts + slot] = -bad
    slots = torch.tensor([[[0, 2, 4, 5, 99999], [3, 4, 5, 4, -7]]])
    out = attend(torch.randn(1, 2, 3, 4), kv, slots, torch.tensor([[2, 1]]), scaling=0.5)
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("group", [1, 4])
def test_error_is_that_of_the_dtype(dtype: torch.dtype, group: int) -> None:
    lengths = [[1, 17], [30, 9]]
    kv = ragged_kv(lengths, 8, 6, dtype)
    q = torch.randn(2, 2, group, 8).to(dtype)
    counts = torch.tensor([[1, 5], [30, 3]])
    slots = torch.zeros(2, 2, 30, dtype=torch.long)
    for b in range(2):
        for g in range(2):
            slots[b, g, : counts[b, g]] = torch.randperm(lengths[b][g])[: counts[b, g]].sort().values
    out = attend(q, kv, slots, counts, scaling=0.35)
    assert out.dtype == dtype
    # Accumulated in float32 (or better) from exact inputs: a few eps of float32, then one rounding to the
    # dtype.
    wide = torch.promote_types(dtype, torch.float32)
    tolerance = 32 * torch.finfo(wide).eps + (torch.finfo(dtype).eps if dtype != wide else 0)
    for b in range(2):
        for g in range(2):
            keys, values = segment(kv, b, g)
            read = slots[b, g, : counts[b, g]].numpy()
            expected = spec.attention(q[b, g].double().numpy(), keys[read], values[read], 0.35)
            found = out[b, g].double().numpy()
            np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(values[read]).max(), rtol=0)


def test_large_logits_do_not_overflow() -> None:
    kv = ragged_kv([[5]], 4, dtype=torch.float16)
    q = torch.full((1, 1, 2, 4), 6e4, dtype=torch.float16)
    out = attend(q, kv, torch.arange(5)[None, None], torch.tensor([[5]]), scaling=1.0)
    assert bool(out.isfinite().all())
