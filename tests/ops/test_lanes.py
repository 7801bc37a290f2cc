"""Numbers side by side in a register give what NumPy gives, for every stored dtype and odd places in memory."""

import numba
import numpy as np
import pytest
import torch

from rocketkv.ops.lanes.cpu import WIDTH, fma, larger, largest, load, splat, store, total, zeros
from rocketkv.ops.vector.cpu import add4, dots4, peak

DTYPES = {torch.float32: torch.float32, torch.bfloat16: torch.int16, torch.float16: torch.uint16}


@numba.njit
def copied(x, at, out):  # type: ignore[no-untyped-def]
    store(out, 0, load(x, at))


@numba.njit
def product(x, y):  # type: ignore[no-untyped-def]
    sums = zeros()
    for i in range(0, x.shape[0], WIDTH):
        sums = fma(load(x, i), load(y, i), sums)
    return total(sums)


@numba.njit
def extremes(x, y, out):  # type: ignore[no-untyped-def]
    most = larger(load(x, 0), load(y, 0))
    store(out, 0, most)
    return largest(larger(most, splat(np.float32(-1))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_loads_widen_every_stored_number(dtype: torch.dtype) -> None:
    if dtype == torch.float32:
        every = torch.randn(4096)
    else:
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)  # every pattern there is
    stored, wide = every.view(DTYPES[dtype]).numpy(), every.float().numpy()
    out = np.empty(WIDTH, np.float32)
    for at in [*range(0, len(stored) - WIDTH, WIDTH), 3, len(stored) - WIDTH]:
        copied(stored, at, out)
        np.testing.assert_array_equal(out, wide[at : at + WIDTH])


def test_sums_of_products() -> None:
    x, y = (np.random.default_rng(i).standard_normal(4 * WIDTH).astype(np.float32) for i in range(2))
    assert product(x, y) == pytest.approx(float(x.astype(np.float64) @ y.astype(np.float64)), rel=1e-5)


def test_the_larger_of_pairs_passes_over_nan() -> None:
    x, y = np.arange(WIDTH, dtype=np.float32), np.full(WIDTH, 5, np.float32)
    x[1] = np.nan
    out = np.empty(WIDTH, np.float32)
    assert extremes(x, y, out) == WIDTH - 1
    np.testing.assert_array_equal(out, np.where(np.isnan(x), y, np.maximum(x, y)))


@pytest.mark.parametrize("count", [0, 1, WIDTH - 1, WIDTH, 3 * WIDTH + 1])
def test_the_peak_of_any_length(count: int) -> None:
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    assert peak(x) == (x.max() if count else -np.inf)


@pytest.mark.parametrize("count", [1, 2, 33, 71])
@pytest.mark.parametrize("head_dim", [1, WIDTH, 3 * WIDTH, 2 * WIDTH + 5])
def test_four_heads_over_rows_of_a_segment(count: int, head_dim: int) -> None:
    random = np.random.default_rng(head_dim)
    rows = random.standard_normal((100, head_dim)).astype(np.float32)
    q = random.standard_normal((8, head_dim)).astype(np.float32)
    slots = np.sort(random.permutation(90)[:count]).astype(np.int64)
    logits = np.zeros((8, count), np.float32)
    dots4(q.reshape(-1), 4, head_dim, rows.reshape(-1), 7, slots, logits, rows.reshape(-1), head_dim)
    np.testing.assert_allclose(logits[4:], q[4:] @ rows[7 + slots].T, rtol=1e-4, atol=1e-4)
    assert not logits[:4].any()
    out = np.ones((8, head_dim + 2), np.float32)
    add4(logits, 4, rows.reshape(-1), 7, head_dim, slots, out)
    np.testing.assert_allclose(out[4:, :head_dim], 1 + logits[4:] @ rows[7 + slots], rtol=1e-4, atol=1e-3)
    assert (out[:4] == 1).all() and (out[:, head_dim:] == 1).all()
