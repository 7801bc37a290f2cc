"""The masked full cache: keep every key and value, and mask what a compressed cache would not read.

An attention function of its own over a plain model and transformers' DynamicCache. Eviction and selection are
computed anew from the oracle's own queries and keys with `support.spec`, in float64, and compared with what
the compressed cache chose; attention is then computed in float64 over the chosen columns, so that arithmetic
is judged on given indices.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rocketkv.hf.compat import CACHE_ARGUMENT
from support import spec
from support.trace import Columns, next_inputs

NAME = "masked_oracle"


class Oracle:
    """A plain model that reads the columns a compressed cache would read.

    Args:
        budget_tokens, window, pool, pooling, split, planned, share: the policy, as plain numbers.
        tolerance: relative slack of a selection's scores; 0 demands the specification's own choice.
        judge: whether choices are compared with the specification (switched off where only arithmetic is of
        interest).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        budget_tokens: int,
        window: int = 32,
        pool: int = 63,
        pooling: str = "max",
        split: float | None = None,
        planned: int = 0,
        share: float = 0.5,
        tolerance: float = 0.0,
        judge: bool = True,
    ) -> None:
        self.model, self.t, self.window, self.pool, self.pooling = model, budget_tokens, window, pool, pooling
        self.split, self.planned, self.tolerance, self.judge = split, planned, tolerance, judge
        self.share = share
        self.cache = DynamicCache(config=model.config)
        config = model.config
        types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        self.full = [number for number, kind in enumerate(types) if kind == "full_attention"]
        self.base = config._attn_implementation
        self.mask: torch.Tensor | None = None
        self.kept: Columns = {}
        self.layouts: dict[int, tuple[int, int]] = {}
        self.given: Columns | None = None
        self.prompting = True
        self.start = 0
        self.sparse_choices = 0

    def prompt(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None, *, given: Columns | None = None
    ) -> torch.Tensor:
        """Read a prompt and evict; `given` is what the compressed cache holds after it. Returns last
        logits [B, V].
        """
        self.prompting, self.given = True, given
        return self._forward(ids, mask)

    def step(self, ids: torch.Tensor, *, given: Columns | None = None) -> torch.Tensor:
        """Read one token per row; `given` is what the compressed cache read. Returns logits [B, V]."""
        self.prompting, self.given = False, given
        return self._forward(ids, None)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        self.start = 0 if self.mask is None else self.mask.shape[1]
        self.mask, inputs = next_inputs(self.mask, ids, mask)
        with self._installed(), torch.no_grad():
            return self.model(**inputs, **{CACHE_ARGUMENT: self.cache}).logits[:, -1]

    @contextmanager
    def _installed(self) -> Iterator[None]:
        AttentionInterface.register(NAME, self._attention)
        AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS[self.base])
        self.model.config._attn_implementation = NAME
        try:
            yield
        finally:
            self.model.config._attn_implementation = self.base

    def _attention(self, module, query, key, value, attention_mask, scaling=None, **kwargs):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if module.layer_idx not in self.full or (self.prompting and self.start == 0):
            base = ALL_ATTENTION_FUNCTIONS[self.base] if self.base != "eager" else eager_of(module)
            out = base(module, query, key, value, attention_mask, scaling=scaling, **kwargs)[0]
        else:
            out = torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1], dtype=query.dtype)
        if module.layer_idx not in self.full:
            return out, None
        layer, group = self.full.index(module.layer_idx), query.shape[1] // key.shape[1]
        for row in range(key.shape[0]):
            for head in range(key.shape[1]):
                q = query[row, head * group : (head + 1) * group].double().numpy()  # [R, q, D]
                k, v = key[row, head].double().numpy(), value[row, head].double().numpy()
                part = out[row, :, head * group : (head + 1) * group]  # [q, R, Dv]
                place = layer, row, head
                if self.prompting:
                    self._read_prompt(place, q, k, v, scale, part if self.start else None)
                else:
                    self._read_token(place, q[:, 0], k, v, scale, part)
        return out, None

    def _read_prompt(self, place, q, k, v, scale, out) -> None:
        row = place[1]
        new = [column for column in range(self.start, len(k)) if self.mask[row, column]]
        held = self.kept.get(place, [])
        if out is not None:
            for column in new:
                seen = held + [c for c in new if c <= column]
                i = column - self.start
                out[i] = torch.from_numpy(spec.attention(q[:, i], k[seen], v[seen], scale)).to(out.dtype)
        candidates = held + new
        plan = spec.plan(
            int(self.mask[row].sum()),
            self.t,
            k.shape[1],
            new=self.planned,
            window=self.window,
            split=self.split,
        )
        self.layouts[row] = (0, 0)
        if not plan["dense"]:
            self.layouts[row] = plan["page"], 2 * (plan["kept"] + self.planned)
        if plan["dense"] or len(candidates) <= plan["kept"]:
            self.kept[place] = candidates
        else:
            self.kept[place] = self._evict(place, q, k, candidates, len(new), plan["kept"], scale)
        if self.given is not None:
            assert self.kept[place] == self.given[place], f"{place} keeps other tokens than the specification"

    def _evict(self, place, q, k, candidates, fresh, kept, scale) -> list[int]:
        own = min(self.window, fresh)
        votes = spec.window_votes(q[:, q.shape[1] - own :], k[candidates], scale)
        scores = spec.pooled(votes, self.pool, self.pooling)
        ordinals = spec.kept_tokens(scores, own, kept)
        if self.given is not None:
            theirs = [candidates.index(column) for column in self.given[place]]
            if theirs != ordinals:
                assert theirs == sorted(theirs), "kept tokens are out of order"
                assert theirs[-own:] == ordinals[-own:], "the window did not stay"
                assert spec.right_choice(scores, theirs[:-own], kept - own, self.tolerance), (
                    f"{place} evicted better tokens"
                )
                ordinals = theirs
        return [candidates[i] for i in ordinals]

    def _read_token(self, place, q, k, v, scale, out) -> None:
        row = place[1]
        held = self.kept[place]
        held.append(self.start)
        read = list(range(len(held)))
        if len(held) > self.t:
            page, until = self.layouts[row]
            if len(held) > until:
                page, until = self.layouts[row] = spec.page_size(len(held), self.t), 2 * len(held)
            count = spec.read(self.t, self.share)
            given = None if self.given is None else [held.index(column) for column in self.given[place]]
            if self.judge or given is None:
                dims = spec.rank(len(held), self.t, page, k.shape[1], self.share)
                scores = spec.token_scores(q, k[held], page, dims, scale)
                read = spec.best_tokens(scores, count)
                if given is not None and given != read:
                    assert spec.right_choice(scores, given, count, self.tolerance), f"{place} read worse tokens"
                self.sparse_choices += 1
            read = read if given is None else given
        elif self.given is not None:
            assert place not in self.given, f"{place} selected although everything is in the budget"
        # The mask: every column stays in the softmax, and those not read are minus infinity.
        logits = q @ k.T * scale
        unread = np.ones(len(k), dtype=bool)
        unread[[held[i] for i in read]] = False
        logits[:, unread] = -np.inf
        out[0] = torch.from_numpy(spec.softmax(logits) @ v).to(out.dtype)


def eager_of(module: torch.nn.Module) -> Callable:
    """The plain attention of the model family that `module` belongs to."""
    return sys.modules[type(module).__module__].eager_attention_forward
