"""Looking on while a cache is read: diagnostics, calibration and pictures, at no cost to those who do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rocketkv.cache.groups import Group
from rocketkv.policies.base import Selection, Step
from rocketkv.types import Float, Tensor

if TYPE_CHECKING:
    from rocketkv.cache.layer import LayerCache

Read = tuple[Group, Step, Selection]
"""Rows that select alike, what their selector saw, and what it chose."""


@runtime_checkable
class Observer(Protocol):
    """Is called once for every decode step of every compressed layer, after its reads.

    `q` are the step's queries, in the basis that the layer stores its keys in. `reads` is empty while the layer is
    whole: then everything held was read.
    """

    def __call__(self, cache: LayerCache, q: Float[Tensor, "B G R D"], scaling: float, reads: list[Read]) -> None: ...
