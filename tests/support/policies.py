"""The policies that every law is checked over. A new method adds one line to METHODS, EVICTORS or SELECTORS."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from rocketkv.policies.adakv import AdaKV
from rocketkv.policies.base import Evictor, Policy, Selection, Selector, Step
from rocketkv.policies.duo import DuoHeads
from rocketkv.policies.exact import ExactTopK
from rocketkv.policies.full import FullKV, KeepAll, ReadAll
from rocketkv.policies.hsa import HybridTopK
from rocketkv.policies.loki import Loki
from rocketkv.policies.quest import QuestPages
from rocketkv.policies.rocketkv import RocketKV, RocketKVMT
from rocketkv.policies.snapkv import SnapKV
from rocketkv.policies.sparq import SparQ
from rocketkv.policies.streaming import Streaming
from rocketkv.policies.tova import TOVA
from rocketkv.policies.two_stage import Composed

LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 12
"""Full-attention layers, KV heads and head size of the tiny models that run every policy."""


@dataclass(frozen=True)
class HappensToReadAll(Selector):
    """Selects like any selector, at every sparse step, and chooses every token."""

    def select(self, q: torch.Tensor, step: Step) -> Selection:
        return ReadAll().select(q, step)


@dataclass(frozen=True)
class RotatedReadAll(HappensToReadAll):
    """The same over keys that are stored in another basis."""

    def basis(self, layer: int) -> torch.Tensor:
        return random_bases()[layer]


@cache
def random_bases(layers: int = LAYERS, kv_heads: int = KV_HEADS, head_dim: int = HEAD_DIM) -> torch.Tensor:
    """Orthonormal columns for every layer and KV head."""
    generator = torch.Generator().manual_seed(5)
    return torch.linalg.qr(torch.randn(layers, kv_heads, head_dim, head_dim, generator=generator)).Q


EVICTORS: dict[str, Callable[[], Evictor]] = {
    "snapkv": lambda: SnapKV(pool_tokens=7),
    "adakv": AdaKV,
    "duoattention": lambda: DuoHeads(((1.0, 0.0), (0.2, 0.7)), sink_tokens=4, recent_tokens=12),
    "streamingllm": Streaming,
    "tova": TOVA,
}
SELECTORS: dict[str, Callable[[], Selector]] = {
    "exact_head": ExactTopK,
    "exact_group": lambda: ExactTopK(per="group"),
    "quest": QuestPages,
    "quest_16": lambda: QuestPages(page_tokens=16, charge_bounds=False),
    "sparq": SparQ,
    "sparq_mean": lambda: SparQ(mean_value=True),
    "loki": lambda: Loki(random_bases()),
    "hsa": HybridTopK,
}
PAIRED_SELECTORS = ("exact_head", "quest", "sparq_mean", "loki", "hsa")


def composed(label: str, evictor: Evictor, selector: Selector) -> Callable[[int], Policy]:
    """The policy of these slots, at a budget."""
    return lambda t: Composed(budget_tokens=t, evictor=evictor, selector=selector, label=label)


METHODS: dict[str, Callable[[int], Policy]] = {
    "full": lambda t: FullKV(),
    "rocketkv": lambda t: RocketKV(budget_tokens=t),
    "rocketkv_mt": lambda t: RocketKVMT(budget_tokens=t),
    "split_0": lambda t: RocketKV(budget_tokens=t, split=0.0),
    "split_half": lambda t: RocketKV(budget_tokens=t, split=0.5),
    "split_1": lambda t: RocketKV(budget_tokens=t, split=1.0),
    "small_window": lambda t: RocketKV(budget_tokens=t, evictor=SnapKV(window_tokens=3, pool_tokens=5)),
    "average_pooling": lambda t: RocketKV(budget_tokens=t, evictor=SnapKV(pool_tokens=7, pooling="avg")),
    "sinks_and_locals": lambda t: RocketKV(budget_tokens=t, selector=HybridTopK(sink_tokens=2, local_tokens=4)),
    "a_quarter_for_the_estimate": lambda t: RocketKV(budget_tokens=t, selector=HybridTopK(estimate_share=0.25)),
    "first_layer_whole": lambda t: RocketKV(budget_tokens=t, skip_layers=1),
    "evict_only": lambda t: RocketKV(budget_tokens=t, selector=ReadAll()),
}
PAIRS: dict[str, Callable[[int], Policy]] = {
    f"{evictor}+{selector}": composed(f"{evictor}+{selector}", EVICTORS[evictor](), SELECTORS[selector]())
    for evictor in EVICTORS
    for selector in PAIRED_SELECTORS
}
POLICIES: dict[str, Callable[[int], Policy]] = (
    METHODS
    | {name: composed(name, make(), ReadAll()) for name, make in EVICTORS.items()}
    | {name: composed(name, KeepAll(), make()) for name, make in SELECTORS.items()}
    | PAIRS
)
"""Name -> the policy at a budget of t tokens: every method, and every evictor with every kind of selector."""

COMPRESSING = {name: make for name, make in POLICIES.items() if not make(16).whole}
SINGLE = {name: make for name, make in COMPRESSING.items() if name not in PAIRS}
"""Methods that compress, without the pairs: for laws that cost much and that a pair adds nothing to."""
EVERYTHING_READ: dict[str, Callable[[int], Policy]] = {
    "full": POLICIES["full"],
    "nothing_evicted": lambda t: RocketKV(budget_tokens=t, split=0.0, selector=HappensToReadAll()),
    "all_retained": lambda t: RocketKVMT(budget_tokens=t, split=0.0, selector=HappensToReadAll()),
    "rotated": composed("rotated", KeepAll(), RotatedReadAll()),
}
"""Policies whose plan is sparse but that happen to keep and read everything."""
