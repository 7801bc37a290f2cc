"""Which columns of a prompt stay, row by row, each by its own policy's evictor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rocketkv.budget import Plan
from rocketkv.cache.ragged import RowRule
from rocketkv.cache.store import choose
from rocketkv.cache.window import Window
from rocketkv.policies.base import Policy, Prompt
from rocketkv.policies.errors import PolicyMisfitError
from rocketkv.types import Bool, Candidates, Float, Int, Tensor

Columns = tuple[Float[Tensor, "B G C D"], Float[Tensor, "B G C Dv"], Int[Tensor, "B G"]]
"""Right-aligned keys and values, and how many of the last columns of each segment hold tokens."""


def tokens_of(keys: Float[Tensor, "B G C D"], counts: Int[Tensor, "B G"]) -> Bool[Tensor, "B G C"]:
    """Which right-aligned columns hold tokens."""
    columns = keys.shape[2]
    return torch.arange(columns, device=keys.device) >= columns - counts[..., None]


def left_whole(policy: Policy, layer: int) -> bool:
    """Whether a policy keeps and reads everything in this layer."""
    return policy.whole or layer < policy.skip_layers


def evict(
    columns: Columns,
    source: list[int],
    policies: Sequence[Policy],
    plans: Sequence[Plan],
    window: Window,
    *,
    scaling: float,
    layer: int,
    layers: int,
    backend: str,
) -> tuple[Bool[Tensor, "n G C"], Candidates | None]:
    """What each of n rows stores, and what it may read of that (None: everything).

    Row i reads the prompt of `source[i]` of the batch, under `policies[i]`.
    """
    keys, _, counts = columns
    keep = _keep(columns, source, policies, plans, window, (scaling, layer, layers, backend))
    retained = torch.tensor([policy.slots[0].retains for policy in policies], device=keys.device)
    stored = keep | (tokens_of(keys, counts)[source] & retained[:, None, None])
    return stored, choose(keep, stored) if bool((stored != keep).any()) else None


def _keep(
    columns: Columns,
    source: list[int],
    policies: Sequence[Policy],
    plans: Sequence[Plan],
    window: Window,
    where: tuple[float, int, int, str],
) -> Bool[Tensor, "n G C"]:
    (keys, values, counts), (scaling, layer, layers, backend) = columns, where
    keep = tokens_of(keys, counts)[source]
    for policy in dict.fromkeys(policies):
        evictor = policy.slots[0]
        if evictor.keeps_all or left_whole(policy, layer):
            continue
        mine = [row for row, owner in enumerate(policies) if owner == policy]
        index = [source[row] for row in mine]
        queries = query_counts = None
        if evictor.observes:
            queries, query_counts = window.last(evictor.observes, index)
        prompt = Prompt(
            queries=queries,
            query_counts=query_counts,
            keys=_rows(keys, index),
            values=_rows(values, index),
            counts=_rows(counts, index),
            scaling=scaling,
            layer=layer,
            layers=layers,
            backend=backend,
        )
        kept = torch.tensor([plans[row].kept_tokens for row in mine], device=keys.device)
        crowded = (prompt.counts > kept[:, None]).any(-1)
        if query_counts is not None:
            crowded &= query_counts > 0  # a row that this turn gave no token has no query to vote: it keeps all
        chosen = evictor.keep(prompt, kept)
        for place, row in enumerate(mine):
            if bool(crowded[place]):
                keep[row] = chosen[place]
    return keep


def key_bases(rules: Sequence[RowRule], layer: int, keys: Float[Tensor, "B G C D"]) -> Float[Tensor, "B G D D"] | None:
    """What each row's keys are rotated by; None if no selector asks for it.

    Raises:
        PolicyMisfitError: for bases of other head counts or sizes than the model's.
    """
    bases = [rule.selector.basis(layer) for rule in rules]
    if all(basis is None for basis in bases):
        return None
    heads, head_dim = keys.shape[1], keys.shape[-1]
    for basis in bases:
        if basis is not None and basis.shape != (heads, head_dim, head_dim):
            raise PolicyMisfitError(
                f"the key bases are for {basis.shape[0]} KV heads of size {basis.shape[1]}, the model has "
                f"{heads} of {head_dim}: calibrate on this model"
            )
    plain = torch.eye(head_dim, device=keys.device).expand(heads, -1, -1)
    return torch.stack([plain if basis is None else basis.to(keys.device) for basis in bases])


def _rows(tensor: Tensor, index: list[int]) -> Tensor:
    """The given rows; the tensor itself, not a copy of a whole layer, where they are all of it."""
    return tensor if index == list(range(tensor.shape[0])) else tensor[index]
