"""A layer that evicted or selects: the flat store, what may be chosen from it, and groups of rows that choose alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rocketkv.cache.groups import Group, lay_out, reordered, take_token
from rocketkv.cache.store import append, append_newest, grow, select_rows, view_rows
from rocketkv.ops.dispatch import op
from rocketkv.ops.hybrid_attend.reference import Whole
from rocketkv.policies.base import Selector, Step
from rocketkv.policies.full import ReadAll
from rocketkv.types import Candidates, Float, Int, RaggedKV, Tensor

READ_ALL = ReadAll()
ENDLESS = 1 << 62
"""More tokens than any sequence."""


@dataclass(frozen=True)
class RowRule:
    """How one row reads: its selector and t; `planned_tokens`: the length of its first page layout (0: as it is)."""

    selector: Selector
    budget_tokens: int
    planned_tokens: int = 0


@dataclass(frozen=True)
class Progress:
    """Where a layer stands between two layouts, per row: its page size and the length up to which that holds.

    `quiet_steps` is how many more tokens fit before the next event; `layouts` counts them.
    """

    page_tokens: list[int]
    laid_until: list[int]
    quiet_steps: int
    layouts: int


class RaggedLayer:
    """The flat store of one layer and the state of its selection.

    `candidates` is None where every stored token may be read. `basis` [B, G, D, D] is what keys (and so queries) are
    rotated by, None for the model's own. `progress` is that of a saved layer, None for a fresh one.
    """

    def __init__(
        self,
        kv: RaggedKV,
        rules: list[RowRule],
        *,
        candidates: Candidates | None = None,
        basis: Float[Tensor, "B G D D"] | None = None,
        layer: int = 0,
        backend: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        self.kv, self.candidates, self.basis = kv, candidates, basis
        self.rules, self.layer, self.backend = rules, layer, backend
        self.groups: list[Group] = []
        self.layouts = 0
        self._page_tokens, self._laid_until = [0] * len(rules), [0] * len(rules)
        if progress is not None:
            self._page_tokens, self._laid_until = list(progress.page_tokens), list(progress.laid_until)
        else:
            for row, rule in enumerate(rules):
                if rule.planned_tokens:
                    self._set_layout(row, rule.planned_tokens)
        self._quiet_steps = 0
        self._fused: tuple[Tensor, Whole] | None = None
        self._fusible = True
        self.lay_out()
        if progress is not None:
            self._quiet_steps, self.layouts = progress.quiet_steps, progress.layouts

    @property
    def lengths(self) -> Int[Tensor, "B G"]:
        """Tokens that may be read, per segment."""
        return self.kv.lengths if self.candidates is None else self.candidates.lengths

    def progress(self) -> Progress:
        """Where it stands, for a copy that is to go on like this one."""
        return Progress(self._page_tokens, self._laid_until, self._quiet_steps, self.layouts)

    @property
    def least_rank(self) -> bool:
        """Whether some row has outgrown what its estimate can do inside the budget."""
        longest, head_dim = self.lengths.amax(-1).tolist(), self.kv.keys.shape[-1]
        return any(
            longest[row] > rule.budget_tokens
            and rule.selector.least_rank(rule.budget_tokens, self._page_tokens[row], head_dim, longest[row])
            for row, rule in enumerate(self.rules)
        )

    @property
    def selects(self) -> bool:
        """Whether some row chooses among its tokens, rather than reading all."""
        return any(not group.selector.reads_all for group in self.groups)

    def append(
        self, keys: Float[Tensor, "B G D"], values: Float[Tensor, "B G Dv"], row_tokens: Int[Tensor, "B"]
    ) -> None:
        """Take one token per row, its last of `row_tokens`.

        Between rare events this is a write, and an update of one page per segment.
        """
        event = self._quiet_steps == 0
        self._fused = None  # it counts in the lengths that are replaced here
        if event:
            self._make_room()
        append(self.kv, keys, values, row_tokens, self.backend)
        self._quiet_steps -= 1  # not before: a token may be refused
        if self.candidates is not None:
            append_newest(self.candidates, self.kv)
        if event:
            self.lay_out()
        else:
            for group in self.groups:
                take_token(group, self.lengths, keys, values, self.backend)

    def whole_step(
        self,
        q: Float[Tensor, "B G R 1 D"],
        keys: Float[Tensor, "B G 1 D"],
        values: Float[Tensor, "B G 1 Dv"],
        scaling: float,
    ) -> tuple[Float[Tensor, "B G R 1 Dv"], int] | None:
        """Take one token per row and attend, in one call: the output, and the stored numbers that were read.

        None, with nothing done, where more than that is due or the backend has no such call: then `append` and read.
        """
        if self._quiet_steps == 0 or not self._fusible:
            return None
        if self._fused is None or self._fused[0] is not self.kv.lengths:
            step = self._make_whole_step(scaling)
            if step is None:
                self._fused, self._fusible = None, False
                return None
            self._fused = self.kv.lengths, step
        done = self._fused[1](q, keys, values)
        self._quiet_steps -= 1
        return done

    def _make_whole_step(self, scaling: float) -> Whole | None:
        group, candidates = self.groups[0], self.candidates
        options = group.selector.hybrid_options
        plain = self.basis is None and self.kv.positions is None and group.value_sums is None
        if len(self.groups) > 1 or group.rows is not None or options is None or group.bounds is None or not plain:
            return None
        # Counted up in place from here on: lengths that others hold stay as they are.
        self.kv.lengths = self.kv.lengths.clone()
        if candidates is not None:
            candidates.lengths = candidates.lengths.clone()
        make = op("hybrid_attend", "whole_step", self.backend)
        step: Whole | None = make(self.kv, candidates, group.bounds, group.budget_tokens, scaling=scaling, **options)
        return step

    def __getstate__(self) -> dict[str, Any]:
        """Without what looks into this layer's own memory: a copy makes it anew."""
        return self.__dict__ | {"_fused": None, "_fusible": True}

    def take_quiet_step(self) -> bool:
        """Whether the coming token is only a write into the present layout; if so, it is counted as taken."""
        quiet = self._quiet_steps > 0
        self._quiet_steps -= quiet
        return quiet

    def step(self, group: Group, scaling: float) -> Step:
        """What the group's selector may look at."""
        kv, candidates = view_rows(self.kv, group.rows), view_rows(self.candidates, group.rows)
        lengths = group.pick(self.lengths)
        return Step(kv, candidates, group.bounds, lengths, group.budget_tokens, scaling, self.layer, self.backend)

    def lay_out(self) -> None:
        """Sort the rows into groups, lay out pages where the length asks for it, and say when to look again."""
        longest = self.lengths.amax(-1).tolist()
        room = self.kv.capacities - self.kv.lengths
        if self.candidates is not None:
            room = room.minimum(self.candidates.capacities - self.candidates.lengths)
        quiet = int(room.min())
        rows_of: dict[Selector, list[int]] = {}
        for row, rule in enumerate(self.rules):
            if rule.selector.reads_all or longest[row] <= rule.budget_tokens:
                rows_of.setdefault(READ_ALL, []).append(row)
                if not rule.selector.reads_all:
                    quiet = min(quiet, rule.budget_tokens - longest[row])
                continue
            if longest[row] > self._laid_until[row]:
                self._set_layout(row, longest[row])
            quiet = min(quiet, self._laid_until[row] - longest[row])
            rows_of.setdefault(rule.selector, []).append(row)
        self._quiet_steps = quiet
        self._fused, self._fusible = None, True
        self.layouts += 1
        self.groups = []
        for selector, rows in rows_of.items():
            budgets = [self.rules[row].budget_tokens for row in rows]
            pages = [0 if selector.reads_all else self._page_tokens[row] for row in rows]
            self.groups.append(lay_out(self.kv, self.candidates, selector, rows, budgets, pages, self.backend))

    def select_rows(self, index: Int[Tensor, "n"]) -> None:
        """Make the batch the rows `index` of itself."""
        batch, order = len(self.rules), index.tolist()
        self.rules = [self.rules[row] for row in order]
        self._page_tokens = [self._page_tokens[row] for row in order]
        self._laid_until = [self._laid_until[row] for row in order]
        self.kv = select_rows(self.kv, index)
        if self.candidates is not None:
            self.candidates = select_rows(self.candidates, index)
        if self.basis is not None:
            self.basis = self.basis[index]
        self._fused, self._fusible = None, True
        moved = (reordered(group, index, batch) for group in self.groups)
        self.groups = [group for group in moved if group is not None]

    def rotated(self, x: Float[Tensor, "B G *n D"]) -> Float[Tensor, "B G *n D"]:
        """Queries or keys in the basis that keys are stored in."""
        if self.basis is None:
            return x
        return rotate(x, self.basis)

    def tensors(self) -> list[Tensor]:
        """Every tensor that is held."""
        held = [self.kv.keys, self.kv.values, self.kv.starts, self.kv.lengths, self.kv.capacities]
        if self.kv.positions is not None:
            held.append(self.kv.positions)
        if self.candidates is not None:
            held += [self.candidates.slots, self.candidates.starts, self.candidates.lengths, self.candidates.capacities]
        if self.basis is not None:
            held.append(self.basis)
        return held + [tensor for group in self.groups for tensor in group.tensors()]

    def _make_room(self) -> None:
        if bool((self.kv.lengths == self.kv.capacities).any()):
            self.kv = grow(self.kv)
        if self.candidates is not None and bool((self.candidates.lengths == self.candidates.capacities).any()):
            self.candidates = grow(self.candidates)

    def _set_layout(self, row: int, tokens: int) -> None:
        layout = self.rules[row].selector.layout(self.rules[row].budget_tokens, tokens)
        self._page_tokens[row], self._laid_until[row] = layout or (0, ENDLESS)


def rotate(x: Float[Tensor, "B G *n D"], basis: Float[Tensor, "B G D D"]) -> Float[Tensor, "B G *n D"]:
    """x expressed in `basis`, computed in float32 or better and returned in x's dtype."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return (x.flatten(2, -2).to(dtype) @ basis.to(dtype)).view(x.shape).to(x.dtype)
