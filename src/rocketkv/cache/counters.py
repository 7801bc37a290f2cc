"""What really happened in a layer: proof that eviction and selection ran, and what they read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Steps by kind, and the bytes that the last decode step read (all rows and heads of the layer).

    A step in which some row selects is sparse. `evicted_tokens` counts (row, KV head) tokens dropped so far.
    """

    prompts: int = 0
    dense_steps: int = 0
    sparse_steps: int = 0
    evicted_tokens: int = 0
    step_bytes: int = 0
