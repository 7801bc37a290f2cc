"""The last queries of the prompt being read, which vote on what stays."""

from __future__ import annotations

import torch

from rocketkv.types import Bool, Float, Int, Tensor


class Window:
    """A rolling buffer of the prompt's last `window_tokens` queries, across its chunks; 0 keeps none."""

    def __init__(self, window_tokens: int) -> None:
        self.window_tokens = window_tokens
        self.queries: Float[Tensor, "B G R W D"] | None = None
        self.counts: Int[Tensor, "B"] | None = None

    def observe(self, q: Float[Tensor, "B G R q D"], valid: Bool[Tensor, "B q"] | None) -> None:
        """Take the queries of new prompt columns; `valid` marks those that hold tokens (None: all)."""
        if self.window_tokens == 0:
            return
        fresh = torch.full((q.shape[0],), q.shape[3], device=q.device) if valid is None else valid.sum(-1)
        q = q[:, :, :, -self.window_tokens :]
        if self.queries is not None and self.counts is not None:
            q = torch.cat([self.queries, q], dim=3)[:, :, :, -self.window_tokens :]
            fresh = fresh + self.counts
        self.queries = q.clone()
        self.counts = fresh.clamp(max=self.window_tokens)

    def last(self, window_tokens: int, rows: list[int]) -> tuple[Float[Tensor, "b G R W D"], Int[Tensor, "b"]]:
        """The last `window_tokens` queries of some rows, right-aligned, and how many of them count."""
        assert self.queries is not None and self.counts is not None, "an evictor that observes has been shown queries"
        kept = self.queries[rows][:, :, :, max(0, self.queries.shape[3] - window_tokens) :]
        return kept, self.counts[rows].clamp(max=window_tokens)
