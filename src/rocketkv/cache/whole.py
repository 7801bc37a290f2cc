"""A layer that dropped and skips nothing: padded columns, grown as transformers grows its own cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rocketkv.cache.store import compact
from rocketkv.types import Bool, Float, Int, Tensor


@dataclass
class WholeLayer:
    """`keys` and `values` as the model sees them; `valid` [B, C] marks columns that hold tokens, None where all do."""

    keys: Float[Tensor, "B G C D"]
    values: Float[Tensor, "B G C Dv"]
    valid: Bool[Tensor, "B C"] | None = None

    def append(
        self, keys: Float[Tensor, "B G q D"], values: Float[Tensor, "B G q Dv"], valid: Bool[Tensor, "B q"] | None
    ) -> None:
        """Take new columns; `valid` marks those that hold tokens (None: all)."""
        if valid is not None or self.valid is not None:
            self.valid = torch.cat([_marks(self.valid, self.keys), _marks(valid, keys)], dim=1)
        self.keys = torch.cat([self.keys, keys], dim=-2)
        self.values = torch.cat([self.values, values], dim=-2)

    def compacted(self) -> tuple[Float[Tensor, "B G C D"], Float[Tensor, "B G C Dv"], Int[Tensor, "B G"]]:
        """Right-aligned keys and values, and how many columns of each segment hold tokens."""
        return compact(self.keys, self.values, self.valid)

    def select_rows(self, index: Int[Tensor, "n"]) -> None:
        """Make the batch the rows `index` of itself."""
        self.keys, self.values = self.keys[index], self.values[index]
        self.valid = None if self.valid is None else self.valid[index]

    def tensors(self) -> list[Tensor]:
        """Every tensor that is held."""
        return [self.keys, self.values] + ([] if self.valid is None else [self.valid])


def _marks(valid: Bool[Tensor, "B q"] | None, keys: Float[Tensor, "B G q D"]) -> Bool[Tensor, "B q"]:
    if valid is not None:
        return valid
    return torch.ones(keys.shape[0], keys.shape[2], dtype=torch.bool, device=keys.device)
