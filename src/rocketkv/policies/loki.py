"""Loki (Singhania et al., NeurIPS 2024, arXiv:2406.02542): keep all, estimate in the leading principal dimensions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch

from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Selection, Selector, Step
from rocketkv.policies.exact import token_probabilities
from rocketkv.types import Float, Tensor


@final
@dataclass(frozen=True)
class Loki(Selector):
    """Reads t // 2 tokens; the other half of t reads the t D // T leading dimensions of all keys, at least one.

    Keys are stored in the basis of their principal components, so there is no second copy of them.

    Args:
        bases: orthonormal columns per compressed layer and KV head, [layers, G, D, D], by falling variance
            (`rocketkv calibrate loki` makes them from a text).
        name: where they come from, for reports; two selectors of one name are the same.
    """

    bases: Float[Tensor, "layers G D D"] = field(compare=False, repr=False)
    name: str = "unnamed"

    def basis(self, layer: int) -> Float[Tensor, "G D D"] | None:
        if layer >= len(self.bases):
            raise ValueError(f"Loki was calibrated for {len(self.bases)} layers, and this is layer {layer + 1}: "
                             "calibrate it on this model")  # fmt: skip
        return self.bases[layer]

    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        head_dim, lengths = q.shape[-1], step.lengths
        rank = (step.budget_tokens[:, None] * head_dim // lengths.clamp(min=1)).clamp(1, head_dim)  # [B, G]
        keys, held = step.keys()
        leading = torch.arange(head_dim, device=q.device) < rank[:, :, None, None]  # [B, G, 1, D]
        probabilities = token_probabilities(q * leading, keys, lengths, step.scaling)
        scores = probabilities.mean(2).masked_fill(~held, -torch.inf)
        counts = step.read_counts(step.budget_tokens // 2)
        single = torch.ones_like(step.budget_tokens)
        tokens = op("topk_tokens", "topk_tokens", step.backend)(scores, lengths, single, counts)
        return Selection(tokens, counts, int((lengths * rank).sum()))
