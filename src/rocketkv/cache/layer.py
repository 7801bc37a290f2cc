"""What one attention layer holds for a batch: whole columns at first, a ragged store once a row evicts or selects."""

from __future__ import annotations

import torch

from rocketkv.budget import Plan
from rocketkv.cache.counters import Counters
from rocketkv.cache.eviction import Columns, evict, key_bases, left_whole, tokens_of
from rocketkv.cache.observer import Observer
from rocketkv.cache.positions import counted_positions, merged_positions
from rocketkv.cache.ragged import ENDLESS, READ_ALL, RaggedLayer, RowRule, rotate
from rocketkv.cache.store import pack, right_aligned, tensor_bytes
from rocketkv.cache.whole import WholeLayer
from rocketkv.cache.window import Window
from rocketkv.policies.base import Policy
from rocketkv.types import Bool, Float, Int, RaggedKV, Tensor


class LayerCache:
    """Keys, values and selection state of one layer for a batch.

    Args:
        policies: one for every row, or a single one for all.
        layer, layers: this layer's place among the compressed ones.
        planned_new_tokens: N of the plan, 0 unless the caller plans a generation length.
        share_prompt: read the first prompt as a batch of one, and give every policy a row of its own at its end.
        keep_positions: note, once a row evicts or selects, which of its tokens each stored one is.

    `observer`, if set, is shown every decode step.
    """

    def __init__(
        self,
        policies: tuple[Policy, ...],
        *,
        layer: int = 0,
        layers: int = 1,
        planned_new_tokens: int = 0,
        share_prompt: bool = False,
        keep_positions: bool = False,
        backend: str = "auto",
    ) -> None:
        self.given_policies = policies
        self.layer, self.layers = layer, layers
        self.planned_new_tokens = planned_new_tokens
        self.share_prompt, self.keep_positions = share_prompt, keep_positions
        self.backend = backend
        self.observer: Observer | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything that was read."""
        self.policies = self.given_policies
        self.columns = 0
        self._row_tokens: Int[Tensor, "B"] | None = None
        self._steps_uncounted = 0
        self.held: WholeLayer | None = None
        self.ragged: RaggedLayer | None = None
        self.plans: list[Plan] = []
        self.counters = Counters()
        self.announced_columns = 0
        self.scaling = 0.0
        self._window: Window | None = None
        self._prompt: Columns | None = None
        self._steps_until_sparse = 0

    @property
    def row_tokens(self) -> Int[Tensor, "B"] | None:
        """Tokens that each row has taken; None before the first."""
        if self._steps_uncounted and self._row_tokens is not None:
            self._row_tokens = self._row_tokens + self._steps_uncounted
            self._steps_uncounted = 0
        return self._row_tokens

    @row_tokens.setter
    def row_tokens(self, tokens: Int[Tensor, "B"] | None) -> None:
        self._row_tokens, self._steps_uncounted = tokens, 0

    @property
    def whole(self) -> bool:
        """Whether the model's own attention and mask serve this layer."""
        return self.ragged is None

    @property
    def kv(self) -> RaggedKV | None:
        """The flat store, None while the layer is whole."""
        return None if self.ragged is None else self.ragged.kv

    @property
    def window_queries(self) -> Float[Tensor, "B G R W D"] | None:
        """The last queries of a prompt that has not ended; None where no evictor wants any."""
        return None if self._window is None else self._window.queries

    def is_prompt(self, new_columns: int) -> bool:
        """Whether a forward of `new_columns` belongs to a prompt; otherwise it is a decode step."""
        return self.columns == 0 or new_columns > 1 or self.announced_columns > 0

    def extend(
        self,
        keys: Float[Tensor, "B G q D"],
        values: Float[Tensor, "B G q Dv"],
        valid: Bool[Tensor, "B q"] | None,
    ) -> tuple[Float[Tensor, "B G C D"], Float[Tensor, "B G C Dv"], Int[Tensor, "B G"] | None]:
        """Take new prompt columns; `valid` marks those that hold tokens (None: all).

        Returns the keys and values that the prompt attends to. While the layer is whole these are the model's own
        columns (counts None); else they are right-aligned, with the number that each segment holds.
        """
        batch, _, new = keys.shape[:3]
        self._admit(batch, keys.device)
        assert self.row_tokens is not None
        self.columns += new
        self.row_tokens = self.row_tokens + (new if valid is None else valid.sum(-1))
        if self.ragged is not None:
            self._prompt = right_aligned(self.ragged.kv, self.ragged.rotated(keys), values, valid)
            return self._prompt
        if self.held is None:
            # A copy, as transformers makes one: a view would keep all of a fused projection alive (Phi-3).
            self.held = WholeLayer(keys.contiguous(), values.contiguous(), valid)
        else:
            self.held.append(keys, values, valid)
        return self.held.keys, self.held.values, None

    def observe(self, q: Float[Tensor, "B G R q D"], valid: Bool[Tensor, "B q"] | None) -> None:
        """Remember the last queries of the prompt, as many as its evictors want to see."""
        if self._window is None:
            wanted = (0 if left_whole(policy, self.layer) else policy.slots[0].observes for policy in self.policies)
            self._window = Window(max(wanted))
        self._window.observe(q.detach(), valid)

    def end_chunk(self, new_columns: int, scaling: float) -> None:
        """After the attention of prompt columns: evict if the prompt ends with them, else hold all of them."""
        self.announced_columns = max(0, self.announced_columns - new_columns)
        self.scaling = scaling
        if self.announced_columns == 0:
            self._end_prompt(scaling)
        elif self.ragged is not None and self._prompt is not None:
            keys, values, counts = self._prompt
            self._pack(keys, values, tokens_of(keys, counts), None, self.ragged.rules)
        self._prompt = None

    def append(self, keys: Float[Tensor, "B G 1 D"], values: Float[Tensor, "B G 1 Dv"]) -> None:
        """Take one generated token per row."""
        assert self.row_tokens is not None
        tokens = self.row_tokens + 1
        if self.ragged is not None:
            self.ragged.append(self.ragged.rotated(keys.detach())[:, :, 0], values.detach()[:, :, 0], tokens)
        self.columns += 1
        self.row_tokens = tokens
        if self.ragged is not None:
            return
        assert self.held is not None
        self.held.append(keys, values, None)
        self._steps_until_sparse -= 1
        if self._steps_until_sparse < 0:
            self._become_ragged()

    def whole_step(
        self,
        q: Float[Tensor, "B G R 1 D"],
        keys: Float[Tensor, "B G 1 D"],
        values: Float[Tensor, "B G 1 Dv"],
        scaling: float,
    ) -> Float[Tensor, "B G R 1 Dv"] | None:
        """Take one generated token per row and attend, in one call; None, with nothing done, where more is due."""
        if self.ragged is None or self.observer is not None:
            return None
        done = self.ragged.whole_step(q, keys, values, scaling)
        if done is None:
            return None
        self.columns += 1
        self._steps_uncounted += 1
        self.count_step(done[1] * keys.element_size())
        return done[0]

    def columns_held(self) -> tuple[Float[Tensor, "B G C D"], Float[Tensor, "B G C Dv"]]:
        """Keys and values of a whole layer."""
        assert self.held is not None, "a ragged layer has no columns"
        return self.held.keys, self.held.values

    def select_rows(self, index: Int[Tensor, "n"]) -> None:
        """Make the batch the rows `index` of itself: beams, repeats, rows that end."""
        if self.row_tokens is None:
            return
        index = index.to(self.row_tokens.device)
        order = index.tolist()
        self.row_tokens = self.row_tokens[index]
        self.policies = tuple(self.policies[row] for row in order)
        self.plans = [self.plans[row] for row in order] if self.plans else []
        if self.held is not None:
            self.held.select_rows(index)
            self._steps_until_sparse = self._count_steps_until_sparse()
        if self.ragged is not None:
            self.ragged.select_rows(index)

    def count_step(self, read_bytes: int) -> None:
        """Record one decode step and the bytes it read."""
        self.counters.step_bytes = read_bytes
        if self.ragged is not None and self.ragged.selects:
            self.counters.sparse_steps += 1
        else:
            self.counters.dense_steps += 1

    def tensors(self) -> list[Tensor]:
        """Every tensor that is held."""
        layer = self.held or self.ragged
        queries = None if self._window is None else self._window.queries
        return ([] if layer is None else layer.tensors()) + ([] if queries is None else [queries])

    def held_bytes(self) -> int:
        """Bytes of the tensors held: keys, values, bounds and bookkeeping."""
        return tensor_bytes(*self.tensors())

    def full_bytes(self) -> int:
        """Bytes that keys and values of every token seen would take."""
        if self.row_tokens is None:
            return 0
        if self.ragged is not None:
            keys, values, heads = self.ragged.kv.keys, self.ragged.kv.values, self.ragged.kv.starts.shape[1]
        else:
            assert self.held is not None
            keys, values, heads = self.held.keys, self.held.values, self.held.keys.shape[1]
        return int(self.row_tokens.sum()) * heads * (keys.shape[-1] + values.shape[-1]) * keys.element_size()

    def kept_per_row(self) -> list[float]:
        """Stored tokens of each row, averaged over the KV heads."""
        if self.ragged is not None:
            return self.ragged.kv.lengths.double().mean(-1).tolist()
        return [] if self.row_tokens is None else [float(tokens) for tokens in self.row_tokens.tolist()]

    def row_rules(self, planned: bool = False) -> list[RowRule]:
        """How each row reads; its pages are laid out for the length it has, or, if `planned`, for its plan's."""
        laid = [0 if plan.dense or not planned else plan.capacity_tokens for plan in self.plans]
        return [
            RowRule(READ_ALL if left_whole(policy, self.layer) else policy.slots[1], policy.budget_tokens, tokens)
            for policy, tokens in zip(self.policies, laid, strict=True)
        ]

    def resume(
        self,
        policies: tuple[Policy, ...],
        *,
        row_tokens: Int[Tensor, "B"],
        columns: int,
        plans: list[Plan],
        counters: Counters,
        held: WholeLayer | None,
    ) -> None:
        """Take up what a saved layer had read; a ragged one is given its store as `ragged` next."""
        self.policies, self.row_tokens, self.columns = policies, row_tokens, columns
        self.plans, self.counters, self.held = plans, counters, held
        if held is not None:
            self._steps_until_sparse = self._count_steps_until_sparse()

    def _admit(self, batch: int, device: torch.device) -> None:
        if self.row_tokens is None:
            if self.share_prompt:
                if batch != 1:
                    raise ValueError(f"a shared prompt is read once, as a batch of 1: got a batch of {batch}")
            else:
                copies, rest = divmod(batch, len(self.policies))
                if rest or copies == 0:
                    raise ValueError(
                        f"{len(self.policies)} policies for a batch of {batch}: give one, or one for each row"
                    )
                # Beams and several returned sequences repeat each row before the prompt is read.
                self.policies = tuple(policy for policy in self.policies for _ in range(copies))
            self.row_tokens = torch.zeros(batch, dtype=torch.long, device=device)
        elif batch != len(self.row_tokens):
            raise ValueError(
                f"a batch of {batch} on a cache of {len(self.row_tokens)} rows: use a new cache, or the same rows"
            )

    def _end_prompt(self, scaling: float) -> None:
        """Plan every row; evict and lay out unless everything stays and is read."""
        assert self.row_tokens is not None
        if len(self.row_tokens) < len(self.policies):  # a shared prompt: every policy gets its row now
            self.row_tokens = self.row_tokens.expand(len(self.policies)).clone()
        head_dim = (self._prompt[0] if self._prompt is not None else self.held.keys).shape[-1]  # type: ignore[union-attr]
        if empty := (self.row_tokens == 0).nonzero()[:, 0].tolist():
            raise ValueError(
                f"row {empty[0]} of the batch holds no token, its attention mask is all zeros: leave it out"
            )
        self.counters.prompts += 1
        self.plans = [
            policy.plan(tokens, head_dim=head_dim, new_tokens=self.planned_new_tokens)
            for policy, tokens in zip(self.policies, self.row_tokens.tolist(), strict=True)
        ]
        if self.ragged is not None or not all(plan.dense for plan in self.plans):
            self._evict(scaling)
        elif self.held is not None:
            if self.held.keys.shape[0] < len(self.policies):
                self.held.select_rows(torch.zeros(len(self.policies), dtype=torch.long, device=self.held.keys.device))
            self._steps_until_sparse = self._count_steps_until_sparse()
        self._window = None

    def _evict(self, scaling: float) -> None:
        if self._prompt is not None:
            keys, values, counts = self._prompt
        else:
            assert self.held is not None
            keys, values, counts = self.held.compacted()
        rows = len(self.policies)
        source = list(range(rows)) if keys.shape[0] == rows else [0] * rows
        stored, candidates = evict(
            (keys, values, counts),
            source,
            self.policies,
            self.plans,
            self._window or Window(0),  # a snapshot without queries shows none
            scaling=scaling,
            layer=self.layer,
            layers=self.layers,
            backend=self.backend,
        )
        self.counters.evicted_tokens += int(counts[source].sum() - stored.sum())
        keys, values = keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1)
        self._pack(keys, values, stored, candidates, self.row_rules(planned=True))

    def _become_ragged(self) -> None:
        """Some row now holds more tokens than its budget: from here on it selects."""
        assert self.held is not None
        keys, values, counts = self.held.compacted()
        self._pack(keys, values, tokens_of(keys, counts), None, self.row_rules())

    def _pack(self, keys: Tensor, values: Tensor, keep: Tensor, candidates: object, rules: list[RowRule]) -> None:
        basis = None if self.ragged is None else self.ragged.basis
        if self.ragged is None:
            basis = key_bases(rules, self.layer, keys)
            if basis is not None:
                keys = rotate(keys, basis)
        kv = pack(keys.detach(), values.detach(), keep, self._positions(keys.shape[2]) if self.keep_positions else None)
        self.held = None
        self.ragged = RaggedLayer(kv, rules, candidates=candidates, basis=basis, layer=self.layer, backend=self.backend)  # type: ignore[arg-type]

    def _positions(self, columns: int) -> Int[Tensor, "B G C"]:
        """Which of its row's tokens each right-aligned column holds: new ones by counting, stored ones as noted."""
        assert self.row_tokens is not None
        if self.ragged is None:
            heads = self.held.keys.shape[1]  # type: ignore[union-attr]
            return counted_positions(self.row_tokens, heads, columns)
        assert self._prompt is not None
        return merged_positions(self.ragged.kv, self._prompt[2], self.row_tokens, columns)

    def _count_steps_until_sparse(self) -> int:
        """Decode steps that a whole layer can take until some row passes its budget."""
        assert self.row_tokens is not None
        rooms = [
            policy.budget_tokens - tokens
            for policy, tokens in zip(self.policies, self.row_tokens.tolist(), strict=True)
            if not (policy.slots[1].reads_all or left_whole(policy, self.layer))
        ]
        return min(rooms, default=ENDLESS)
