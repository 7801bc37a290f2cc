"""Loki (Singhania et al., NeurIPS 2024, arXiv:2406.02542): keep all, estimate in the leading principal dimensions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch

from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Selection, Selector, Step
from rocketkv.policies.errors import PolicyMisfitError
from rocketkv.policies.exact import token_probabilities
from rocketkv.policies.key_bases import digest, read_bases
from rocketkv.types import Float, Tensor


@final
@dataclass(frozen=True)
class Loki(Selector):
    """Reads t // 2 tokens; the other half of t reads the t D // T leading dimensions of all keys, at least one.

    Keys are stored in the basis of their principal components, so there is no second copy of them.

    Args:
        bases: orthonormal columns per compressed layer and KV head, [layers, G, D, D], by falling energy
            (`rocketkv calibrate loki` makes them from a text).
        rank: a fixed number of leading dimensions instead, not charged to the budget; at D the scores are exact.
        name: what tells two bases apart, by default a digest of them; two selectors of one name are the same.
    """

    bases: Float[Tensor, "layers G D D"] = field(compare=False, repr=False)
    rank: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank={self.rank} is below 1: give the number of leading dimensions to read")
        if not self.name:
            object.__setattr__(self, "name", digest(self.bases))

    @staticmethod
    def load_bases(path: str) -> Float[Tensor, "layers G D D"]:
        """The option `bases` as text: a file made by `rocketkv calibrate loki`. Raises ValueError in one line."""
        return read_bases(path)

    def basis(self, layer: int) -> Float[Tensor, "G D D"] | None:
        if layer >= len(self.bases):
            raise PolicyMisfitError(
                f"Loki was calibrated for {len(self.bases)} layers, and this is layer {layer + 1}: "
                "calibrate it on this model"
            )
        return self.bases[layer]

    def least_rank(self, budget_tokens: int, page_tokens: int, head_dim: int, tokens: int) -> bool:
        return self.rank is None and budget_tokens * head_dim < tokens

    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        head_dim, lengths = q.shape[-1], step.lengths
        rank = (step.budget_tokens[:, None] * head_dim // lengths.clamp(min=1)).clamp(1, head_dim)  # [B, G]
        if self.rank is not None:
            rank = torch.full_like(rank, min(self.rank, head_dim))
        keys, held = step.keys()
        leading = torch.arange(head_dim, device=q.device) < rank[:, :, None, None]  # [B, G, 1, D]
        probabilities = token_probabilities(q * leading, keys, lengths, step.scaling)
        scores = probabilities.mean(2).masked_fill(~held, -torch.inf)
        counts = step.read_counts(step.budget_tokens // 2)
        single = torch.ones_like(step.budget_tokens)
        tokens = op("topk_tokens", "topk_tokens", step.backend)(scores, lengths, single, counts)
        return Selection(tokens, counts, int((lengths * rank).sum()))
