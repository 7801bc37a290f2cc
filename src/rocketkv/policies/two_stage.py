"""An evictor and a selector under one budget: what every method but Full-KV is."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from rocketkv.budget import check_split
from rocketkv.policies.base import Evictor, Policy, Selector


@dataclass(frozen=True, kw_only=True)
class TwoStage(Policy):
    """The budget is split between the stages by r: 0 where nothing is evicted, 1 where everything kept is read.

    Args:
        split: r in [0, 1] where both stages are at work; None for min(0.2 + 0.06 log2 c, 0.8).
    """

    split: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.split)

    @property
    @abstractmethod
    def slots(self) -> tuple[Evictor, Selector]:
        """The evictor and the selector."""

    @property
    def fixed_split(self) -> float | None:
        evictor, selector = self.slots
        if evictor.keeps_all:
            return 0.0
        return 1.0 if selector.reads_all else self.split

    def describe(self) -> dict[str, Any]:
        split = self.fixed_split
        return super().describe() | {"split": "adaptive" if split is None else split}


@dataclass(frozen=True, kw_only=True)
class Composed(TwoStage):
    """Any evictor with any selector.

    Args:
        label: its name in reports, such as "snapkv+quest".
    """

    evictor: Evictor
    selector: Selector
    label: str

    @property
    def name(self) -> str:
        return self.label

    @property
    def slots(self) -> tuple[Evictor, Selector]:
        return self.evictor, self.selector
