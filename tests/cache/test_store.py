"""The ragged store: what is packed, appended, grown and reordered stays in order, and slack is never read."""

import numpy as np
import pytest
import torch

from rocketkv.cache.store import append, compact, grow, pack, right_aligned, select_rows, tensor_bytes, view_rows
from rocketkv.ops.ragged import columns_of
from support.ragged import ragged_kv, segment


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN."""
    fresh = torch.Tensor.new_empty

    def poisoned(self: torch.Tensor, *size: object, **options: object) -> torch.Tensor:
        memory = fresh(self, *size, **options)
        return memory.fill_(float("nan")) if memory.is_floating_point() else memory.fill_(-12345)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


def test_pack_keeps_the_marked_columns_in_position_order() -> None:
    keys = torch.arange(12.0).view(1, 2, 6, 1)
    keep = torch.tensor([[[True, False, True, False, False, True], [False, False, False, True, False, False]]])
    kv = pack(keys, -keys, keep)
    assert kv.lengths.tolist() == [[3, 1]]
    assert segment(kv, 0, 0)[0][:, 0].tolist() == [0, 2, 5]
    assert segment(kv, 0, 1)[0][:, 0].tolist() == [9]
    assert segment(kv, 0, 0)[1][:, 0].tolist() == [0, -2, -5]
    assert bool((kv.capacities > kv.lengths).all())
    ends = (kv.starts + kv.capacities).flatten().sort().values
    assert ends[-1] == len(kv.keys)


def test_pack_of_rows_that_stay_whole_beside_others() -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(3, 2, 9, 4, generator=generator), torch.randn(3, 2, 9, 2, generator=generator)
    keep = torch.rand(3, 2, 9, generator=generator) < 0.5
    keep[1] = True
    positions = torch.arange(9).expand(3, 2, 9)
    kv = pack(keys, values, keep, positions)
    assert kv.positions is not None
    for b in range(3):
        for g in range(2):
            found = segment(kv, b, g)
            np.testing.assert_array_equal(found[0], keys[b, g][keep[b, g]])
            np.testing.assert_array_equal(found[1], values[b, g][keep[b, g]])
            place = slice(int(kv.starts[b, g]), int(kv.starts[b, g] + kv.lengths[b, g]))
            assert kv.positions[place].tolist() == keep[b, g].nonzero()[:, 0].tolist()


def test_segments_seen_as_columns() -> None:
    keys = torch.randn(2, 3, 7, 4)
    kv = pack(keys, keys, torch.ones(2, 3, 7, dtype=torch.bool))
    seen = columns_of(kv.keys, kv.starts, kv.lengths)
    assert seen is not None and torch.equal(seen, keys)
    seen[1, 2, 3] = 5.0  # the store itself
    assert bool((segment(kv, 1, 2)[0][3] == 5).all())
    back = columns_of(kv.keys, kv.starts.flip(0), kv.lengths)
    assert back is None, "strides cannot be negative"
    for b, g in ((0, 1), (1, 2)):
        uneven = kv.lengths.clone()
        uneven[b, g] -= 1
        assert columns_of(kv.keys, kv.starts, uneven) is None
        moved = kv.starts.clone()
        moved[b, g] += 1
        assert columns_of(kv.keys, moved, kv.lengths) is None
    one = columns_of(kv.keys[3:], kv.starts[1:, 2:] - 3, kv.lengths[1:, 2:])
    assert one is not None and torch.equal(one, seen[1:, 2:])


def test_append_and_grow() -> None:
    kv = ragged_kv([[3, 1], [5, 4]], 2)
    before = {(b, g): segment(kv, b, g) for b in range(2) for g in range(2)}
    kv = grow(kv)
    for step in range(40):
        tokens = torch.tensor([99, 99])  # of use to positions alone, which this store does not keep
        append(kv, torch.full((2, 2, 2), 100.0 + step), torch.full((2, 2, 2), -100.0 - step), tokens, "reference")
    assert kv.lengths.tolist() == [[43, 41], [45, 44]]
    for (b, g), (keys, values) in before.items():
        now = segment(kv, b, g)
        np.testing.assert_array_equal(now[0][: len(keys)], keys)
        np.testing.assert_array_equal(now[1][: len(values)], values)
        assert now[0][len(keys) :, 0].tolist() == [100.0 + step for step in range(40)]
        assert now[1][len(keys) :, 0].tolist() == [-100.0 - step for step in range(40)]


@pytest.mark.parametrize("rows", [[1, 0], [0, 0, 1], [1]])
def test_rows_are_copied_and_viewed(rows: list[int]) -> None:
    kv = ragged_kv([[3, 0], [5, 4]], 2)
    index = torch.tensor(rows)
    copy, view = select_rows(kv, index), view_rows(kv, index)
    for place, row in enumerate(rows):
        for g in range(2):
            for one in (copy, view):
                np.testing.assert_array_equal(segment(one, place, g)[0], segment(kv, row, g)[0])
                np.testing.assert_array_equal(segment(one, place, g)[1], segment(kv, row, g)[1])
    assert view.keys is kv.keys
    assert copy.keys.data_ptr() != kv.keys.data_ptr()
    assert view_rows(kv, None) is kv


def test_right_aligned_puts_new_tokens_behind_the_stored_ones() -> None:
    kv = ragged_kv([[3, 2], [1, 4]], 1)
    new = torch.tensor([[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]]).view(2, 1, 3, 1).expand(-1, 2, -1, -1)
    valid = torch.tensor([[False, False, True], [True, True, True]])
    keys, values, counts = right_aligned(kv, new, -new, valid)
    assert counts.tolist() == [[4, 3], [4, 7]]
    assert keys.shape[2] == 7
    for b in range(2):
        for g in range(2):
            fresh = [12.0] if b == 0 else [20.0, 21.0, 22.0]
            expected = segment(kv, b, g)[0][:, 0].tolist() + fresh
            assert keys[b, g, 7 - len(expected) :, 0].tolist() == expected
            assert values[b, g, 7 - len(fresh) :, 0].tolist() == [-x for x in fresh]
            assert bool((keys[b, g, : 7 - len(expected)] == 0).all())


def test_right_aligned_when_new_columns_outnumber_the_tokens() -> None:
    kv = ragged_kv([[1]], 1)
    new = torch.tensor([[[[77.0], [77.0], [77.0], [5.0]]]])
    keys, _, counts = right_aligned(kv, new, new, torch.tensor([[False, False, False, True]]))
    assert counts.tolist() == [[2]]
    assert keys[0, 0, :, 0].tolist() == [float(segment(kv, 0, 0)[0][0, 0]), 5.0]


def test_compact_pushes_tokens_to_the_right_whatever_holes_there_are() -> None:
    keys = torch.arange(10.0).view(2, 1, 5, 1)
    valid = torch.tensor([[True, False, True, False, True], [False, False, True, True, True]])
    packed, _, counts = compact(keys, keys, valid)
    assert counts.tolist() == [[3], [3]]
    assert packed[0, 0, -3:, 0].tolist() == [0, 2, 4]
    assert packed[1, 0, -3:, 0].tolist() == [7, 8, 9]
    assert compact(keys, keys, None)[2].tolist() == [[5], [5]]


def test_memory_is_counted_once_and_whole() -> None:
    whole = torch.zeros(10, 4)
    assert tensor_bytes(whole[:2], whole[5:], whole.view(-1)) == 160
    assert tensor_bytes(whole, torch.zeros(3, dtype=torch.int64)) == 184
