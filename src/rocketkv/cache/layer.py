"""What one attention layer holds: whole while nothing is dropped or skipped, ragged from then on.

Whole: padded `keys` and `values` as the model sees them, grown as transformers grows its own cache, so that a dense
plan is bit-identical to the uncompressed model. Ragged: the flat store `kv`, without padding, and groups of rows.
"""

from __future__ import annotations

import torch

from rocketkv.budget import Plan
from rocketkv.cache.counters import Counters
from rocketkv.cache.groups import Group, lay_out, reordered, take_key
from rocketkv.cache.store import append, compact, grow, pack, right_aligned, select_rows, tensor_bytes
from rocketkv.policies.base import Policy, Prompt, Selector
from rocketkv.policies.full import ReadAll
from rocketkv.types import Bool, Float, Int, RaggedKV, Tensor

READ_ALL = ReadAll()


class LayerCache:
    """Keys, values and selection state of one layer for a batch.

    Args:
        policies: one for every row, or a single one for all.
        layer, layers: this layer's place among the compressed ones.
        planned_new_tokens: N of the plan, 0 unless the caller plans a generation length.
    """

    def __init__(
        self,
        policies: tuple[Policy, ...],
        *,
        layer: int = 0,
        layers: int = 1,
        planned_new_tokens: int = 0,
        backend: str = "auto",
    ) -> None:
        self.given_policies = policies
        self.layer, self.layers = layer, layers
        self.planned_new_tokens = planned_new_tokens
        self.backend = backend
        self.reset()

    def reset(self) -> None:
        """Forget everything that was read."""
        self.policies = self.given_policies
        self.columns = 0
        self.row_tokens: Int[Tensor, "B"] | None = None
        self.keys: Float[Tensor, "B G C D"] | None = None
        self.values: Float[Tensor, "B G C Dv"] | None = None
        self.valid: Bool[Tensor, "B C"] | None = None
        self.kv: RaggedKV | None = None
        self.plans: list[Plan] = []
        self.groups: list[Group] = []
        self.counters = Counters()
        self.announced_columns = 0
        self._queries: Float[Tensor, "B G R W D"] | None = None
        self._query_counts: Int[Tensor, "B"] | None = None
        self._page_tokens: list[int] = []
        self._laid_until: list[int] = []
        self._quiet_steps = 0

    @property
    def whole(self) -> bool:
        """Whether the model's own attention and mask serve this layer."""
        return self.kv is None

    def is_prompt(self, new_columns: int) -> bool:
        """Whether a forward of `new_columns` belongs to a prompt; otherwise it is a decode step."""
        return self.columns == 0 or new_columns > 1 or self.announced_columns > 0

    # Reading a prompt

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
        counts = None
        if self.kv is None:
            self._cat(keys, values, valid)
            assert self.keys is not None and self.values is not None
            extended = self.keys, self.values
        else:
            *extended, counts = right_aligned(self.kv, keys, values, valid)
            self.keys, self.values = extended
        self.columns += new
        self.row_tokens = self.row_tokens + (new if valid is None else valid.sum(-1))
        return *extended, counts

    def observe(self, q: Float[Tensor, "B G R q D"], valid: Bool[Tensor, "B q"] | None) -> None:
        """Remember the last window queries of the prompt, over all its chunks."""
        window = max(0 if self._left_whole(policy) else policy.slots[0].observes for policy in self.policies)
        if window == 0:
            return
        fresh = torch.full((q.shape[0],), q.shape[3], device=q.device) if valid is None else valid.sum(-1)
        if self._queries is not None:
            q = torch.cat([self._queries, q[:, :, :, -window:]], dim=3)
            fresh = fresh + self._query_counts
        self._queries = q[:, :, :, -window:].clone()
        self._query_counts = fresh.clamp(max=window)

    def end_chunk(self, counts: Int[Tensor, "B G"] | None, new_columns: int, scaling: float) -> None:
        """After the attention of prompt columns: evict if the prompt ends with them, else hold all of them."""
        self.announced_columns = max(0, self.announced_columns - new_columns)
        assert self.keys is not None and self.values is not None and self.row_tokens is not None
        if self.announced_columns > 0:
            if counts is not None:
                self._pack(self.keys, self.values, _held(self.keys, counts))
            return
        self.counters.prompts += 1
        head_dim = self.keys.shape[-1]
        self.plans = [
            policy.plan(tokens, head_dim=head_dim, new_tokens=self.planned_new_tokens)
            for policy, tokens in zip(self.policies, self.row_tokens.tolist(), strict=True)
        ]
        if self.kv is not None or not all(plan.dense for plan in self.plans):
            self._evict(counts, scaling)
        self._queries = self._query_counts = None
        if self.kv is None:
            self._quiet_steps = self._steps_until_sparse()

    def _evict(self, counts: Int[Tensor, "B G"] | None, scaling: float) -> None:
        keys, values = self.keys, self.values
        assert keys is not None and values is not None
        if counts is None:
            keys, values, counts = compact(keys, values, self.valid)
        keep = _held(keys, counts)
        for policy, rows in self._rows_by_policy():
            evictor = policy.slots[0]
            if evictor.keeps_all or self._left_whole(policy):
                continue
            index = torch.tensor(rows, device=keys.device)
            assert self._queries is not None and self._query_counts is not None
            prompt = Prompt(self._queries[index], self._query_counts[index], keys[index], values[index], counts[index],
                            scaling, self.layer, self.layers, self.backend)  # fmt: skip
            kept = torch.tensor([self.plans[row].kept_tokens for row in rows], device=keys.device)
            crowded = (counts[index] > kept[:, None]).any(-1)
            keep[index[crowded]] = evictor.keep(prompt, kept)[crowded]
        self.counters.evicted_tokens += int(counts.sum() - keep.sum())
        self._pack(keys, values, keep)
        self._page_tokens = [0] * len(self.plans)
        self._laid_until = [0] * len(self.plans)
        for row, plan in enumerate(self.plans):
            if not plan.dense:
                self._set_layout(row, plan.capacity_tokens)
        self._lay_out()

    # Decoding

    def append(self, keys: Float[Tensor, "B G 1 D"], values: Float[Tensor, "B G 1 Dv"]) -> None:
        """Take one generated token per row, and bring lengths, pages and layouts up to date."""
        assert self.row_tokens is not None
        self.columns += 1
        self.row_tokens = self.row_tokens + 1
        event = self._quiet_steps == 0
        self._quiet_steps -= 1
        if self.kv is None:
            self._cat(keys, values, None)
            if event and (steps := self._steps_until_sparse()) < 0:
                self._become_ragged()
            elif event:
                self._quiet_steps = steps
            return
        if event and bool((self.kv.lengths == self.kv.capacities).any()):
            self.kv = grow(self.kv)
        append(self.kv, keys[:, :, 0], values[:, :, 0])
        if event:
            self._lay_out()
        else:
            for group in self.groups:
                take_key(group, self.kv, keys[:, :, 0], self.backend)

    def _become_ragged(self) -> None:
        """Some row now holds more tokens than its budget: from here on it selects."""
        assert self.keys is not None and self.values is not None
        keys, values, counts = compact(self.keys, self.values, self.valid)
        self._pack(keys, values, _held(keys, counts))
        self._page_tokens = [0] * len(self.policies)
        self._laid_until = [0] * len(self.policies)
        self._lay_out()

    def _lay_out(self) -> None:
        """Sort the rows into groups, lay out pages where the length asks for it, and say when to look again."""
        assert self.kv is not None
        longest = self.kv.lengths.amax(-1).tolist()
        quiet = int((self.kv.capacities - self.kv.lengths).min())
        rows_of: dict[Selector, list[int]] = {}
        for row, policy in enumerate(self.policies):
            selector, budget = policy.slots[1], policy.budget_tokens
            selects = not (selector.reads_all or self._left_whole(policy))
            if not selects or longest[row] <= budget:
                rows_of.setdefault(READ_ALL, []).append(row)
                if selects:
                    quiet = min(quiet, budget - longest[row])
                continue
            if longest[row] > self._laid_until[row]:
                self._set_layout(row, longest[row])
            quiet = min(quiet, self._laid_until[row] - longest[row])
            rows_of.setdefault(selector, []).append(row)
        self._quiet_steps = quiet
        self.counters.layouts += 1
        self.groups = []
        for selector, rows in rows_of.items():
            budgets = [self.policies[row].budget_tokens for row in rows]
            pages = [0 if selector.reads_all else self._page_tokens[row] for row in rows]
            self.groups.append(lay_out(self.kv, selector, rows, budgets, pages, self.backend))

    def count_step(self, read_bytes: int) -> None:
        """Record one decode step and the bytes it read."""
        self.counters.step_bytes = read_bytes
        if any(not group.selector.reads_all for group in self.groups):
            self.counters.sparse_steps += 1
        else:
            self.counters.dense_steps += 1

    def _set_layout(self, row: int, tokens: int) -> None:
        layout = self.policies[row].slots[1].layout(self.policies[row].budget_tokens, tokens)
        self._page_tokens[row], self._laid_until[row] = layout or (0, 1 << 62)

    def _steps_until_sparse(self) -> int:
        """Decode steps that a whole layer can take until some row passes its budget; negative once one has."""
        assert self.row_tokens is not None
        rooms = [
            policy.budget_tokens - tokens
            for policy, tokens in zip(self.policies, self.row_tokens.tolist(), strict=True)
            if not (policy.slots[1].reads_all or self._left_whole(policy))
        ]
        return min(rooms, default=1 << 62)

    # The batch as a whole

    def select_rows(self, index: Int[Tensor, "n"]) -> None:
        """Make the batch the rows `index` of itself: beams, repeats, rows that end."""
        if self.row_tokens is None:
            return
        batch = len(self.policies)
        index = index.to(self.row_tokens.device)
        order = index.tolist()
        self.row_tokens = self.row_tokens[index]
        for name in ("policies", "plans", "_page_tokens", "_laid_until"):
            old = getattr(self, name)
            if old:
                setattr(self, name, type(old)(old[row] for row in order))
        for name in ("keys", "values", "valid", "_queries", "_query_counts"):
            old = getattr(self, name)
            if old is not None:
                setattr(self, name, old[index])
        if self.kv is not None:
            self.kv = select_rows(self.kv, index)
            moved = (reordered(group, index, batch) for group in self.groups)
            self.groups = [group for group in moved if group is not None]

    def held_bytes(self) -> int:
        """Bytes of the tensors held for this layer: keys, values, bounds and bookkeeping."""
        tensors = [t for t in (self.keys, self.values, self.valid, self._queries) if t is not None]
        if self.kv is not None:
            tensors += [self.kv.keys, self.kv.values, self.kv.starts, self.kv.lengths, self.kv.capacities]
        for group in self.groups:
            if group.bounds is not None:
                tensors += [group.bounds.data, group.bounds.upper, group.bounds.lower, group.bounds.pitch]
        return tensor_bytes(*tensors)

    def kept_per_row(self) -> list[float]:
        """Stored tokens of each row, averaged over the KV heads."""
        if self.kv is not None:
            return self.kv.lengths.double().mean(-1).tolist()
        return [] if self.row_tokens is None else [float(tokens) for tokens in self.row_tokens.tolist()]

    def full_bytes(self) -> int:
        """Bytes that keys and values of every token seen would take."""
        if self.row_tokens is None:
            return 0
        keys, values = (self.kv.keys, self.kv.values) if self.kv is not None else (self.keys, self.values)
        assert keys is not None and values is not None
        heads = self.kv.lengths.shape[1] if self.kv is not None else keys.shape[1]
        return int(self.row_tokens.sum()) * heads * (keys.shape[-1] + values.shape[-1]) * keys.element_size()

    def _admit(self, batch: int, device: torch.device) -> None:
        if self.row_tokens is None:
            copies, rest = divmod(batch, len(self.policies))
            if rest or copies == 0:
                raise ValueError(f"{len(self.policies)} policies for a batch of {batch}: give one, or one for each row")
            # Beams and several returned sequences repeat each row before the prompt is read.
            self.policies = tuple(policy for policy in self.policies for _ in range(copies))
            self.row_tokens = torch.zeros(batch, dtype=torch.long, device=device)
        elif batch != len(self.policies):
            raise ValueError(f"a batch of {batch} on a cache of {len(self.policies)} rows: use a new cache, or the same rows")

    def _left_whole(self, policy: Policy) -> bool:
        return policy.whole or self.layer < policy.skip_layers

    def _cat(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> None:
        old = self.columns
        if valid is not None or self.valid is not None:
            ones = [torch.ones(keys.shape[0], n, dtype=torch.bool, device=keys.device) for n in (old, keys.shape[2])]
            parts = [self.valid if self.valid is not None else ones[0], valid if valid is not None else ones[1]]
            self.valid = torch.cat(parts, dim=1)
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=-2)
        self.values = values if self.values is None else torch.cat([self.values, values], dim=-2)

    def _pack(self, keys: Tensor, values: Tensor, keep: Tensor) -> None:
        self.kv = pack(keys, values, keep)
        self.keys = self.values = self.valid = None

    def _rows_by_policy(self) -> list[tuple[Policy, list[int]]]:
        rows: dict[Policy, list[int]] = {}
        for row, policy in enumerate(self.policies):
            rows.setdefault(policy, []).append(row)
        return list(rows.items())


def _held(keys: Float[Tensor, "B G C D"], counts: Int[Tensor, "B G"]) -> Bool[Tensor, "B G C"]:
    columns = keys.shape[2]
    return torch.arange(columns, device=keys.device) >= columns - counts[..., None]
