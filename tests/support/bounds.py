"""Whether the page bounds of a live cache bound exactly the keys it stores."""

import numpy as np
import torch

from rocketkv.cache.ragged import RaggedLayer
from rocketkv.hf.cache import CompressedCache
from support import spec


def candidate_keys(layer: RaggedLayer, row: int, head: int) -> torch.Tensor:
    """The keys that may be read, in position order: all that is stored, or this turn's candidates."""
    start, length = int(layer.kv.starts[row, head]), int(layer.kv.lengths[row, head])
    keys = layer.kv.keys[start : start + length]
    if layer.candidates is None:
        return keys
    first, count = int(layer.candidates.starts[row, head]), int(layer.candidates.lengths[row, head])
    return keys[layer.candidates.slots[first : first + count].long()]


def assert_bounds_are_true(cache: CompressedCache) -> int:
    """Every page of every selecting row holds the maximum and minimum of its own keys; returns how many pages."""
    checked = 0
    for state in cache.states:
        for group in [] if state.ragged is None else state.ragged.groups:
            if group.bounds is None:
                continue
            bounds = group.bounds
            rows = range(state.kv.lengths.shape[0]) if group.rows is None else group.rows.tolist()
            assert len(rows) == len(bounds.page_tokens)
            for place, row in enumerate(rows):
                for head in range(state.kv.lengths.shape[1]):
                    keys = candidate_keys(state.ragged, row, head).double().numpy()
                    truth = spec.page_bounds(keys, int(bounds.page_tokens[place]))
                    pitch = int(bounds.pitch[place, head])
                    for begin, expected in zip((bounds.upper, bounds.lower), truth, strict=True):
                        first = int(begin[place, head])
                        block = bounds.data[first : first + pitch * keys.shape[1]].view(keys.shape[1], pitch)
                        np.testing.assert_array_equal(block[:, : len(expected)].T.double().numpy(), expected)
                        checked += len(expected)
    return checked
