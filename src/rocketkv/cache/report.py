"""What a cache holds and reads, counted from its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rocketkv.cache.layer import LayerCache


@dataclass(frozen=True)
class CacheReport:
    """Tokens per row, bytes over all compressed layers.

    `kept_tokens` is the mean over layers and KV heads of what is stored for each row. `step_bytes` is what the last
    decode step read. `full_cache_bytes` is what keys and values of every token seen would take. `floors` names the
    rows' lower bounds that decided how many tokens were kept. `equivalent_tokens` is the budget that a row costs where
    its policy keeps what it keeps whatever the budget (DuoAttention), None for others.
    `least_rank` says that some row is so long that one dimension a page costs more than the estimate's half of t.
    """

    tokens_seen: list[int]
    kept_tokens: list[float]
    cache_bytes: int
    full_cache_bytes: int
    step_bytes: int
    layer_bytes: list[int]
    sparse_steps: int
    dense_steps: int
    evicted_tokens: int
    floors: list[tuple[str, ...]]
    equivalent_tokens: list[float | None]
    least_rank: bool = False

    @property
    def kept_fraction(self) -> float:
        """Bytes held as a share of a full cache's; above 1 where bounds outweigh what eviction saved."""
        return self.cache_bytes / max(self.full_cache_bytes, 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        kept = ", ".join(f"{kept:.0f} of {seen}" for kept, seen in zip(self.kept_tokens, self.tokens_seen, strict=True))
        share = f"{100 * self.kept_fraction:.1f} %"
        lines = [
            f"tokens kept      {kept}",
            f"bytes held       {self.cache_bytes:,}, {share} of a full cache's {self.full_cache_bytes:,}",
            f"bytes per step   {self.step_bytes:,}",
            f"decode steps     {self.sparse_steps} sparse, {self.dense_steps} dense (all layers)",
        ]
        floors = sorted({floor for row in self.floors for floor in row})
        if floors:
            lines.append(f"floors           kept tokens are at their least because of the {' and the '.join(floors)}")
        if any(tokens is not None for tokens in self.equivalent_tokens):
            words = ", ".join("-" if tokens is None else f"{tokens:,.0f}" for tokens in self.equivalent_tokens)
            lines.append(f"equal budget     {words} tokens per KV head: the full heads decide it, not the budget")
        if self.kept_fraction > 1 and self.sparse_steps:
            lines.append(
                "note             page bounds and room to grow outweigh what was evicted: less so on longer texts"
            )
        if self.least_rank:
            lines.append(
                "note             the rank is at its least, 1: the estimate costs more than half of the budget"
            )
        return "\n".join(lines)


def report_of(states: Sequence[LayerCache]) -> CacheReport:
    """The report over the compressed layers of one cache."""
    held = [state for state in states if state.row_tokens is not None]
    layer_bytes = [state.held_bytes() for state in states]
    seen = held[0].row_tokens.tolist() if held else []  # type: ignore[union-attr]
    kept = [state.kept_per_row() for state in held]
    return CacheReport(
        tokens_seen=seen,
        kept_tokens=[sum(layer[row] for layer in kept) / len(kept) for row in range(len(seen))],
        cache_bytes=sum(layer_bytes),
        full_cache_bytes=sum(state.full_bytes() for state in held),
        step_bytes=sum(state.counters.step_bytes for state in held),
        layer_bytes=layer_bytes,
        sparse_steps=sum(state.counters.sparse_steps for state in held),
        dense_steps=sum(state.counters.dense_steps for state in held),
        evicted_tokens=sum(state.counters.evicted_tokens for state in held),
        floors=[plan.floors for plan in held[0].plans] if held else [],
        least_rank=any(state.ragged is not None and state.ragged.least_rank for state in held),
        equivalent_tokens=_equivalent_tokens(held[0]) if held else [],
    )


def _equivalent_tokens(state: LayerCache) -> list[float | None]:
    """Per row, for the prompt of its plan; a dense plan keeps everything, so that there is nothing to compare."""
    pairs = zip(state.policies, state.plans, strict=False)  # no plans before the prompt has been read
    return [None if plan.dense else policy.slots[0].equivalent_tokens(plan.context_tokens) for policy, plan in pairs]
