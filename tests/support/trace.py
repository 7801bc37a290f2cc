"""Which tokens a compressed cache really kept and read, as columns of the conversation.

The store does not remember where its tokens came from. The trace wraps a policy's evictor and selector,
writes down what they chose, and translates ordinals to columns after each forward.
"""

from dataclasses import dataclass, field, replace

import torch
from transformers import PreTrainedModel

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.policies.base import Evictor, Policy, Prompt, Selection, Selector, Step

Columns = dict[tuple[int, int, int], list[int]]
"""(layer, row, KV head) -> columns, in order."""


@dataclass(frozen=True)
class WatchedEvictor(Evictor):
    """Another evictor, and a log of what it kept."""

    inner: Evictor
    log: list = field(default_factory=list, compare=False)

    @property
    def observes(self) -> int:
        return self.inner.observes

    @property
    def keeps_all(self) -> bool:
        return self.inner.keeps_all

    @property
    def retains(self) -> bool:
        return self.inner.retains

    def keep(self, prompt: Prompt, kept_tokens: torch.Tensor) -> torch.Tensor:
        mask = self.inner.keep(prompt, kept_tokens)
        self.log.append((prompt.layer, prompt.counts.clone(), kept_tokens.clone(), mask.clone()))
        return mask


@dataclass(frozen=True)
class WatchedSelector(Selector):
    """Another selector, and a log of what it read."""

    inner: Selector
    log: list = field(default_factory=list, compare=False)

    @property
    def reads_all(self) -> bool:
        return self.inner.reads_all

    @property
    def means_values(self) -> bool:
        return self.inner.means_values

    def basis(self, layer: int) -> torch.Tensor | None:
        return self.inner.basis(layer)

    def layout(self, budget_tokens: int, tokens: int) -> tuple[int, int] | None:
        return self.inner.layout(budget_tokens, tokens)

    def select(self, q: torch.Tensor, step: Step) -> Selection:
        chosen = self.inner.select(q, step)
        self.log.append((step.kv.starts[:, 0].tolist(), chosen))
        return chosen


class Trace:
    """Runs an attached model token by token over a compressed cache, and remembers what was kept and read.

    One policy for all rows, so that the rows an evictor sees are the batch's.
    """

    def __init__(self, model: PreTrainedModel, policy: Policy, **options: object) -> None:
        self.model = model
        if not policy.whole:
            evictor, selector = WatchedEvictor(policy.slots[0]), WatchedSelector(policy.slots[1])
            policy = replace(policy, evictor=evictor, selector=selector)
            self.evictions, self.selections = evictor.log, selector.log
            self.retains = policy.slots[0].retains
        else:
            self.evictions, self.selections, self.retains = [], [], False
        self.cache, self.whole_layers = CompressedCache(model, policy, **options), policy.skip_layers
        self.mask: torch.Tensor | None = None
        self.kept: Columns = {}
        """What may be read: all that is stored, or this turn's candidates where the policy retains the rest."""
        self.stored: Columns = {}
        self.reads: list[Columns] = []
        """What each decode step read. A (layer, row, head) that is missing read everything it had."""

    def prompt(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Feed a prompt; returns its last logits [B, V]."""
        start, logits = self._forward(ids, mask)
        heads = self._heads()
        fresh = self.mask[:, start:]
        for layer in range(len(self.cache.states)):
            for row in range(ids.shape[0]):
                new = (fresh[row].nonzero()[:, 0] + start).tolist()
                for head in range(heads):
                    self.stored.setdefault((layer, row, head), []).extend(new)
        self.kept = {key: list(columns) for key, columns in self.stored.items()}
        for layer, counts, wanted, mask_kept in self.evictions:
            for row, head in ((row, head) for row in range(ids.shape[0]) for head in range(heads)):
                held = self.kept[layer, row, head]
                assert len(held) == int(counts[row, head])
                if len(held) > int(wanted[row]):
                    chosen = mask_kept[row, head, mask_kept.shape[-1] - len(held) :]
                    assert not bool(mask_kept[row, head, : mask_kept.shape[-1] - len(held)].any())
                    self.kept[layer, row, head] = [held[i] for i in chosen.nonzero()[:, 0].tolist()]
        self.evictions.clear()
        if not self.retains:
            self.stored = {key: list(columns) for key, columns in self.kept.items()}
        return logits

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed one token per row; returns its logits [B, V]."""
        column, logits = self._forward(ids, None)
        for columns in (*self.kept.values(), *self.stored.values()):
            columns.append(column)
        read: Columns = {}
        assert len(self.selections) in (0, len(self.cache.states) - self.whole_layers)
        for layer, (starts, chosen) in enumerate(self.selections, start=self.whole_layers):
            row_of = {start: row for row, start in enumerate(self.cache.states[layer].kv.starts[:, 0].tolist())}
            for place, start in enumerate(starts):
                for head in range(chosen.tokens.shape[1]):
                    key = layer, row_of[start], head
                    ordinals = chosen.tokens[place, head, : chosen.counts[place, head]].tolist()
                    kept = self.kept[layer, row_of[start], head * self._heads() // chosen.tokens.shape[1]]
                    read[key] = [kept[i] for i in ordinals]
        self.selections.clear()
        self.reads.append(read)
        return logits

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> tuple[int, torch.Tensor]:
        start = 0 if self.mask is None else self.mask.shape[1]
        self.mask, inputs = next_inputs(self.mask, ids, mask)
        with attach(self.model), torch.no_grad():
            logits = self.model(**inputs, **self.cache.kwargs).logits[:, -1]
        return start, logits

    def _heads(self) -> int:
        state = self.cache.states[0]
        return state.held.keys.shape[1] if state.kv is None else state.kv.lengths.shape[1]


def next_inputs(
    seen: torch.Tensor | None, ids: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The mask over everything so far, and a forward's inputs with each row's true positions."""
    fresh = torch.ones_like(ids) if mask is None else mask
    full = fresh if seen is None else torch.cat([seen, fresh], dim=1)
    positions = (full.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    return full, {"input_ids": ids, "attention_mask": full, "position_ids": positions}
