"""The two slots of every method, an evictor and a selector, and the policy that fills them. All are frozen values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch

from rocketkv.budget import Plan, check_budget_tokens, make_plan
from rocketkv.ops.ragged import columns_of, padded_index
from rocketkv.types import Bool, Candidates, Float, Int, PageBounds, RaggedKV, Tensor


@dataclass(frozen=True)
class Prompt:
    """What an evictor may look at when a prompt has been read: one layer, rows of one policy, right-aligned columns.

    `queries` [B, G, R, W, D] are the last prompt queries, of which the last `query_counts` [B] count (None for an
    evictor that observes none); `keys` and
    `values` [B, G, C, D] are all candidates in position order, of which the last `counts` [B, G] count.
    """

    queries: Float[Tensor, "B G R W D"] | None
    query_counts: Int[Tensor, "B"] | None
    keys: Float[Tensor, "B G C D"]
    values: Float[Tensor, "B G C Dv"]
    counts: Int[Tensor, "B G"]
    scaling: float
    layer: int
    layers: int
    backend: str = "auto"


@dataclass(frozen=True)
class Step:
    """What a selector may look at in a decode step: one layer, rows of one selector.

    `lengths` [B, G] candidates may be read; they are `candidates` of the store, or all of it where that is None.
    `budget_tokens` [B] is t of each row; `bounds` are the pages over the candidates, if the selector lays out any.
    """

    kv: RaggedKV
    candidates: Candidates | None
    bounds: PageBounds | None
    lengths: Int[Tensor, "B G"]
    budget_tokens: Int[Tensor, "B"]
    scaling: float
    layer: int = 0
    backend: str = "auto"

    def slots(self, ordinals: Int[Tensor, "B H K"]) -> Int[Tensor, "B H K"]:
        """Where candidates stand within their segment of the store; H is G, or G R for a choice per query head."""
        if self.candidates is None:
            return ordinals
        starts = self.candidates.starts.repeat_interleave(ordinals.shape[1] // self.candidates.starts.shape[1], dim=1)
        return self.candidates.slots[starts[..., None] + ordinals].long()

    def read_counts(self, read_tokens: Int[Tensor, "B"]) -> Int[Tensor, "B G"]:
        """Tokens to read per segment: all of them up to the budget, else `read_tokens` of its row."""
        lengths = self.lengths
        return torch.where(lengths <= self.budget_tokens[:, None], lengths, read_tokens[:, None].clamp(max=lengths))

    def keys(self) -> tuple[Float[Tensor, "B G T D"], Bool[Tensor, "B G T"]]:
        """Padded keys of all candidates and which are real: what an oracle reads. The store itself where it can be."""
        if self.candidates is None:
            columns = columns_of(self.kv.keys, self.kv.starts, self.lengths)
            if columns is not None:
                return columns, columns.new_ones(columns.shape[:3], dtype=torch.bool)
        ordinals, held = padded_index(torch.zeros_like(self.lengths), self.lengths, int(self.lengths.max()))
        index = self.kv.starts[..., None] + self.slots(ordinals)
        return self.kv.keys[index].masked_fill(~held[..., None], 0), held


@dataclass(frozen=True)
class Selection:
    """Candidates to read, as ordinals in position order: the first `counts` [B, H] of `tokens` [B, H, K].

    H is G where a group reads the same tokens, and G R where each query head reads its own. `estimate_elements` is how
    many stored numbers were read to choose them. `mass` [B, G, R], if given, is the share of attention that the chosen
    tokens are estimated to hold; the rest goes to the mean of all values.
    """

    tokens: Int[Tensor, "B H K"]
    counts: Int[Tensor, "B H"]
    estimate_elements: int
    mass: Float[Tensor, "B G R"] | None = None


@dataclass(frozen=True)
class Evictor(ABC):
    """Chooses, once per prompt, which tokens stay."""

    @property
    def observes(self) -> int:
        """Prompt queries (from the last one back) that `keep` needs; 0 for none."""
        return 0

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever dropped, whatever the budget."""
        return False

    @property
    def retains(self) -> bool:
        """Whether what is not kept stays in the store and may be chosen again by a later prompt (several turns)."""
        return False

    @property
    def own_budget_tokens(self) -> int | None:
        """The budget that belongs to the evictor's own settings; None where it has none, and one must be given."""
        return None

    def equivalent_tokens(self, context_tokens: int) -> float | None:
        """Mean tokens kept per KV head for a prompt, where the budget does not decide that; None where it does."""
        return None

    @abstractmethod
    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        """Which columns stay. Columns that hold no token must be False."""


@dataclass(frozen=True)
class Selector(ABC):
    """Chooses, at every decode step, which of the kept tokens are read."""

    @property
    def reads_all(self) -> bool:
        """Whether every kept token is read at every step, whatever the budget."""
        return False

    @property
    def means_values(self) -> bool:
        """Whether the mean of all values must be at hand."""
        return False

    @property
    def hybrid_options(self) -> dict[str, Any] | None:
        """The options of `ops.hybrid_attend` where that op is what the selector reads by; None where it is not."""
        return None

    @property
    def estimate_share(self) -> float:
        """What a step spends of its budget on choosing, the rest being for the tokens attended."""
        return 0.5

    def basis(self, layer: int) -> Float[Tensor, "G D D"] | None:
        """An orthonormal basis (columns) in which this layer's keys are stored, None for the model's own."""
        return None

    def layout(self, budget_tokens: int, tokens: int) -> tuple[int, int] | None:
        """Tokens per page at a length of `tokens`, and the length up to which that holds; None: no page bounds."""
        return None

    def least_rank(self, budget_tokens: int, page_tokens: int, head_dim: int, tokens: int) -> bool:
        """Whether one dimension of every page is read at `tokens`, and costs more than the estimate's share of t."""
        return False

    def bounds_share(self, shrink_factor: float, split: float) -> float:
        """What the page bounds take of a full cache's memory at c and r, by the formula; 0 without bounds."""
        return 0.0

    @abstractmethod
    def select(self, q: Float[Tensor, "B G R D"], step: Step) -> Selection:
        """The tokens to read, at most the budget of each row; all of them where a segment holds no more than that."""


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """A method at a budget: evictor, selector and how the budget is split between them.

    `skip_layers` leaves the first layers whole: everything kept, everything read.
    """

    budget_tokens: int
    skip_layers: int = 0

    def __post_init__(self) -> None:
        check_budget_tokens(self.budget_tokens)
        if self.skip_layers < 0:
            raise ValueError(
                f"skip_layers={self.skip_layers} is below 0: give the number of leading layers to leave whole"
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in the registry."""

    @property
    @abstractmethod
    def slots(self) -> tuple[Evictor, Selector]:
        """The evictor and the selector."""

    @property
    def whole(self) -> bool:
        """Whether the policy never evicts and never selects: the uncompressed model."""
        evictor, selector = self.slots
        return evictor.keeps_all and selector.reads_all

    def plan(self, context_tokens: int, *, head_dim: int, new_tokens: int = 0) -> Plan:
        """What a row of `context_tokens` keeps and reads. Raises ValueError when an argument is out of range."""
        evictor, selector = self.slots
        return make_plan(
            context_tokens,
            budget_tokens=self.budget_tokens,
            head_dim=head_dim,
            new_tokens=new_tokens,
            window_tokens=evictor.observes,
            split=self.fixed_split,
            estimate_share=selector.estimate_share,
        )

    @property
    def fixed_split(self) -> float | None:
        """r in [0, 1] where the policy fixes it, None for the adaptive rule."""
        return None

    def with_budget(self, budget_tokens: int) -> Policy:
        """The same method at another budget."""
        return replace(self, budget_tokens=budget_tokens)

    def describe(self) -> dict[str, Any]:
        """The policy as plain values, for reports and records."""
        return {"policy": self.name, "budget_tokens": self.budget_tokens}
