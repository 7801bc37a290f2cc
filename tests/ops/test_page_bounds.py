"""Page bounds: element-wise maximum and minimum of the keys of each page, and their upkeep token by token."""

import numpy as np
import pytest
import torch

from rocketkv.ops.page_bounds.reference import gather_bounds, page_counts
from rocketkv.types import PageBounds, RaggedKV
from support import spec
from support.backends import on_backend
from support.ragged import ragged_kv, segment, slots_of

build_page_bounds = on_backend("page_bounds", "build_page_bounds")
update_page_bounds = on_backend("page_bounds", "update_page_bounds")


def built(kv: RaggedKV, pages: list[int]) -> PageBounds:
    """Bounds over all tokens of the store, with their memory poisoned first by a NaN allocation of the
    same size.
    """
    return build_page_bounds(kv.keys, slots_of(kv), kv.lengths, torch.tensor(pages), kv.capacities)


def bounds_of(bounds: PageBounds, b: int, g: int, pages: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Maximum and minimum of one segment as [P, D], read by the layout that the docstring promises."""
    pitch = int(bounds.pitch[b, g])
    read = []
    for start in (int(bounds.upper[b, g]), int(bounds.lower[b, g])):
        at = torch.tensor([[start + d * pitch + p for d in range(head_dim)] for p in range(pages)])
        read.append(bounds.data[at].double().numpy())
    return read[0], read[1]


def assert_true_bounds(bounds: PageBounds, kv: RaggedKV) -> None:
    """Every page in use bounds exactly its own tokens."""
    for b in range(kv.lengths.shape[0]):
        for g in range(kv.lengths.shape[1]):
            keys, _ = segment(kv, b, g)
            if len(keys) == 0:
                continue
            upper, lower = spec.page_bounds(keys, int(bounds.page_tokens[b]))
            found = bounds_of(bounds, b, g, len(upper), keys.shape[1])
            np.testing.assert_array_equal(found[0], upper)
            np.testing.assert_array_equal(found[1], lower)


def test_by_hand() -> None:
    # Five keys of two dimensions, pages of two: {1, 2}, {3, 4} and the ragged {5}, all below zero, so that a
    # page filled up with zeros would show.
    keys = torch.tensor([[-1.0, -5.0], [-2.0, -4.0], [-3.0, -3.0], [-4.0, -2.0], [-5.0, -1.0]])
    kv = RaggedKV(keys, keys, torch.zeros(1, 1).long(), torch.tensor([[5]]), torch.tensor([[5]]))
    upper, lower = bounds_of(built(kv, [2]), 0, 0, 3, 2)
    assert upper.tolist() == [[-1, -4], [-3, -2], [-5, -1]]
    assert lower.tolist() == [[-2, -5], [-4, -3], [-5, -1]]


def test_pages_of_one_token_hold_the_keys_once() -> None:
    kv = ragged_kv([[5, 3]], 4)
    bounds = built(kv, [1])
    assert torch.equal(bounds.upper, bounds.lower)
    assert bounds.data.numel() == 4 * int(kv.capacities.sum())
    assert_true_bounds(bounds, kv)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pages", [[1, 1, 1], [2, 3, 1], [4, 7, 64]])
def test_equals_the_specification(pages: list[int], dtype: torch.dtype) -> None:
    kv = ragged_kv([[1, 13], [7, 0], [29, 8]], 6, dtype=dtype)
    assert_true_bounds(built(kv, pages), kv)


@pytest.mark.parametrize("pages", [[1, 2], [3, 5], [7, 1]])
def test_appended_tokens_update_their_page(pages: list[int]) -> None:
    kv = ragged_kv([[1, 4], [6, 9]], 5)
    kv.capacities = kv.capacities.clamp(max=kv.lengths + 1)
    room = kv.lengths + 12
    bounds = build_page_bounds(kv.keys, slots_of(kv), kv.lengths, torch.tensor(pages), room)
    held = {(b, g): list(segment(kv, b, g)[0]) for b in range(2) for g in range(2)}
    for step in range(12):
        fresh = torch.randn(2, 2, 5) * (1 + step)
        update_page_bounds(bounds, fresh, kv.lengths + step)
        for (b, g), keys in held.items():
            keys.append(fresh[b, g].double().numpy())
            upper, lower = spec.page_bounds(np.array(keys), pages[b])
            found = bounds_of(bounds, b, g, len(upper), 5)
            np.testing.assert_array_equal(found[0], upper)
            np.testing.assert_array_equal(found[1], lower)


def test_a_page_that_opens_ignores_what_its_memory_held() -> None:
    kv = ragged_kv([[4]], 3)
    bounds = build_page_bounds(kv.keys, slots_of(kv), kv.lengths, torch.tensor([2]), torch.tensor([[8]]))
    pitch = int(bounds.pitch[0, 0])
    for start in (int(bounds.upper[0, 0]), int(bounds.lower[0, 0])):
        bounds.data[start : start + 3 * pitch].view(3, pitch)[:, 2:] = float("nan")
    key = torch.tensor([[[-7.0, 0.5, 3.0]]])
    update_page_bounds(bounds, key, torch.tensor([[4]]))
    upper, lower = bounds_of(bounds, 0, 0, 3, 3)
    assert upper[2].tolist() == lower[2].tolist() == [-7.0, 0.5, 3.0]


def test_page_counts_and_gather() -> None:
    kv = ragged_kv([[1, 5], [4, 0]], 3)
    bounds = built(kv, [2, 3])
    pages = page_counts(bounds, kv.lengths)
    assert pages.tolist() == [[1, 3], [2, 0]]
    dims, take_upper = (
        torch.tensor([[[2, 0], [1, 1]], [[0, 1], [2, 1]]]),
        torch.tensor([[[True, False]] * 2] * 2),
    )
    rows, in_use = gather_bounds(bounds, dims, take_upper, pages)
    assert in_use.sum(-1).tolist() == pages.tolist()
    upper, lower = spec.page_bounds(segment(kv, 0, 1)[0], 2)
    np.testing.assert_array_equal(rows[0, 1, 0].double().numpy(), upper[:, 1])
    np.testing.assert_array_equal(rows[0, 1, 1].double().numpy(), lower[:, 1])
