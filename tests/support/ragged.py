"""Random ragged stores whose unused memory is NaN, and numpy views of one segment."""

import numpy as np
import torch

from rocketkv.types import RaggedKV

POISON = float("nan")


def ragged_kv(
    lengths: list[list[int]],
    head_dim: int,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> RaggedKV:
    """Random keys and values; segments lie in shuffled order with gaps, and everything that is not held is
    NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    held = torch.tensor(lengths)
    capacities = held + torch.randint(1, 6, held.shape, generator=generator)
    order = torch.randperm(held.numel(), generator=generator)
    flat, starts = capacities.reshape(-1), torch.zeros(held.numel(), dtype=torch.long)
    at = 3
    for segment in order.tolist():
        starts[segment] = at
        at += int(flat[segment])
    kv = RaggedKV(
        torch.full((at, head_dim), POISON, dtype=dtype),
        torch.full((at, value_dim or head_dim), POISON, dtype=dtype),
        starts.view_as(held),
        held,
        capacities,
    )
    for b, row in enumerate(lengths):
        for g, length in enumerate(row):
            start = int(kv.starts[b, g])
            kv.keys[start : start + length] = torch.randn(length, head_dim, generator=generator).to(dtype)
            kv.values[start : start + length] = torch.randn(length, kv.values.shape[1], generator=generator).to(dtype)
    return kv


def segment(kv: RaggedKV, b: int, g: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of one segment in float64."""
    part = slice(int(kv.starts[b, g]), int(kv.starts[b, g] + kv.lengths[b, g]))
    return kv.keys[part].double().numpy(), kv.values[part].double().numpy()


def slots_of(kv: RaggedKV) -> torch.Tensor:
    """Where each candidate lies in the flat store, [B, G, T]; what is behind a length points at slot 0,
    which is NaN.
    """
    width = int(kv.lengths.max())
    slots = torch.zeros(*kv.lengths.shape, width, dtype=torch.long)
    for b in range(kv.lengths.shape[0]):
        for g in range(kv.lengths.shape[1]):
            length = int(kv.lengths[b, g])
            slots[b, g, :length] = torch.arange(length) + kv.starts[b, g]
    return slots
