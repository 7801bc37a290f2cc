"""Dense attention of a later turn's prompt over what is stored and itself."""

import numpy as np
import pytest
import torch

from rocketkv.ops.attend_prompt import reference
from support import spec
from support.backends import on_backend

attend_prompt = on_backend("attend_prompt", "attend_prompt")


def by_loops(q, keys, values, counts, scaling):
    """Query i of segment (b, g) sees the held columns up to C - q + i; None where it sees none."""
    batch, heads, _, new, _ = q.shape
    columns = keys.shape[2]
    out = {}
    for b in range(batch):
        for g in range(heads):
            first = columns - int(counts[b, g])
            for i in range(new):
                seen = slice(first, columns - new + i + 1)
                if columns - new + i >= first:
                    k, v = (x[b, g, seen].double().numpy() for x in (keys, values))
                    out[b, g, i] = spec.attention(q[b, g, :, i].double().numpy(), k, v, scaling)
    return out


@pytest.mark.parametrize("mask_elements", [1 << 25, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_the_specification(dtype: torch.dtype, mask_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "MASK_ELEMENTS", mask_elements)
    counts = torch.tensor([[11, 11], [4, 4], [7, 9]])
    q = torch.randn(3, 2, 2, 5, 8).to(dtype)
    keys, values = torch.randn(3, 2, 11, 8).to(dtype), torch.randn(3, 2, 11, 6).to(dtype)
    for b in range(3):
        for g in range(2):  # what is not held is finite garbage that would dominate
            keys[b, g, : 11 - counts[b, g]] = 100
            values[b, g, : 11 - counts[b, g]] = 1000
    out = attend_prompt(q, keys, values, counts, scaling=0.4)
    assert out.dtype == dtype
    assert bool(out.isfinite().all())
    expected = by_loops(q, keys, values, counts, 0.4)
    assert len(expected) == 2 * (5 + 4) + 5 * 2
    tolerance = 4 * torch.finfo(dtype).eps + 1e-5  # probabilities and the result are rounded to the dtype
    for (b, g, i), value in expected.items():
        np.testing.assert_allclose(out[b, g, :, i].double().numpy(), value, atol=tolerance * 4)


def test_more_new_columns_than_tokens_is_finite() -> None:
    # Every row is padded on the left of its new columns: fewer columns than queries are left.
    q, keys, values = torch.randn(2, 1, 2, 6, 4), torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 4)
    out = attend_prompt(q, keys, values, torch.tensor([[4], [2]]), scaling=0.5)
    assert out.shape == (2, 1, 2, 6, 4)
    assert bool(out.isfinite().all())
    expected = by_loops(q[:, :, :, 2:], keys, values, torch.tensor([[4], [2]]), 0.5)
    for (b, g, i), value in expected.items():
        np.testing.assert_allclose(out[b, g, :, i + 2].double().numpy(), value, atol=1e-5)
