"""TOVA (Oren et al., EMNLP 2024, arXiv:2401.06104): the tokens that the last token attends to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from rocketkv.ops.dispatch import op
from rocketkv.policies.base import Evictor, Prompt
from rocketkv.policies.snapkv import best_columns
from rocketkv.types import Bool, Int, Tensor


@final
@dataclass(frozen=True)
class TOVA(Evictor):
    """Keeps the tokens with the highest attention of the prompt's last query, the mean over all heads of the layer.

    Differs: TOVA drops one token at every step; here the prompt is cut once, and generated tokens stay.
    """

    @property
    def observes(self) -> int:
        return 1

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        window_scores = op("window_scores", "window_scores", prompt.backend)
        scores = window_scores(prompt.queries, prompt.query_counts, prompt.keys, prompt.counts, scaling=prompt.scaling)
        heads, columns = scores.shape[1:]
        assert prompt.query_counts is not None
        newest = torch.arange(columns, device=scores.device) >= columns - prompt.query_counts[:, None, None]
        chosen = best_columns(scores.mean(1, keepdim=True), (kept_tokens - prompt.query_counts)[:, None])
        return (newest | chosen).expand(-1, heads, -1).clone()
