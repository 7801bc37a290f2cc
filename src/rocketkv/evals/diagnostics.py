"""What a policy's choice covers of the full cache's attention, step by step, on one prompt and one forced answer.

All policies and the full cache are rows of one batch over one reading of the prompt. The full cache's row is the
truth: its queries, its keys. What a policy read is compared as positions of the prompt and the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rocketkv.cache.layer import LayerCache
from rocketkv.cache.observer import Read
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache, CompressedLayer
from rocketkv.policies.base import Policy
from rocketkv.policies.exact import token_probabilities
from rocketkv.policies.full import FullKV
from rocketkv.policies.snapkv import best_columns
from rocketkv.types import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Diagnosis:
    """Arrays over M policies, N decode steps, L compressed layers and G KV heads.

    `recall` [M, N, L, G] is the share of the exact top tokens (by the mean attention of a group in the full cache, as
    many as `top_tokens` of the policy) that the policy read; `mass` [M, N, L, G] the share of the full cache's
    attention that the tokens read hold, mean over the group's heads; `read_tokens` [M, N, L, G] how many were read.
    `distinct` [N, L, G] counts the different tokens that the exact top `oracle_tokens` named from the first step on.
    `answer_ids` [N] were fed to every row, the last one included.
    """

    policies: list[str]
    top_tokens: list[int]
    oracle_tokens: int
    prompt_tokens: int
    answer_ids: list[int]
    recall: np.ndarray
    mass: np.ndarray
    read_tokens: np.ndarray
    distinct: np.ndarray

    def save(self, path: Path) -> None:
        """Write all of it as one .npz file."""
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in vars(self).items()}
        np.savez_compressed(path, **arrays)


class _Watch:
    """An observer that compares every policy's reads with the full cache in row 0."""

    def __init__(self, top_tokens: Sequence[int], oracle_tokens: int) -> None:
        self.top_tokens, self.oracle_tokens = top_tokens, oracle_tokens
        self.seen: dict[int, list[tuple[np.ndarray, ...]]] = {}
        self.touched: dict[int, Bool[Tensor, "G T"]] = {}

    def __call__(self, cache: LayerCache, q: Float[Tensor, "B G R D"], scaling: float, reads: list[Read]) -> None:
        keys = self._full_keys(cache)  # [1, G, T, D]
        length = torch.full(keys.shape[:2], keys.shape[2], device=keys.device)
        attention = token_probabilities(q[:1], keys, length, scaling)[0]  # [G, R, T]
        masks = read_masks(cache, reads, attention.shape[-1], q.shape[2])[1:]  # [M, G, R, T]
        recall = [
            (mask & best(attention, top)[:, None]).sum(-1).double().mean(-1) / min(top, keys.shape[2])
            for mask, top in zip(masks, self.top_tokens, strict=True)
        ]
        mass = (masks * attention).sum(-1).mean(-1)
        touched = best(attention, self.oracle_tokens)
        if cache.layer in self.touched:
            touched[:, : keys.shape[2] - 1] |= self.touched[cache.layer]
        self.touched[cache.layer] = touched
        found = (torch.stack(recall), mass, masks.sum(-1).double().mean(-1), touched.sum(-1))
        self.seen.setdefault(cache.layer, []).append(tuple(part.cpu().numpy() for part in found))

    def arrays(self) -> list[np.ndarray]:
        """Recall, mass and tokens read [M, N, L, G], and distinct tokens [N, L, G]."""
        layers = [self.seen[layer] for layer in sorted(self.seen)]
        stacked = [np.stack([np.stack([step[part] for step in steps]) for steps in layers]) for part in range(4)]
        return [part.transpose(2, 1, 0, 3) for part in stacked[:3]] + [stacked[3].transpose(1, 0, 2)]

    @staticmethod
    def _full_keys(cache: LayerCache) -> Float[Tensor, "1 G T D"]:
        if cache.kv is None:
            return cache.columns_held()[0][:1]
        kv = cache.kv
        slots = kv.starts[0, :, None] + torch.arange(int(kv.lengths[0, 0]), device=kv.starts.device)
        return kv.keys[slots][None]


def best(attention: Float[Tensor, "G R T"], tokens: int) -> Bool[Tensor, "G T"]:
    """The `tokens` with the highest attention of each group; equal ones in position order."""
    mean = attention.mean(1)[None]
    counts = torch.full(mean.shape[:2], min(tokens, mean.shape[-1]), device=mean.device)
    return best_columns(mean, counts)[0]


def read_masks(cache: LayerCache, reads: list[Read], tokens: int, group_size: int) -> Bool[Tensor, "B G R T"]:
    """Which of its row's `tokens` each query head read in a step; all of them while the layer is whole."""
    assert cache.row_tokens is not None
    kv, rows = cache.kv, len(cache.row_tokens)
    if kv is None:
        heads = cache.columns_held()[0].shape[1]
        return torch.ones(rows, heads, group_size, tokens, dtype=torch.bool, device=cache.row_tokens.device)
    assert kv.positions is not None, "reads are found by the positions that the cache keeps when asked to"
    heads = kv.starts.shape[1]
    masks = torch.zeros(rows, heads, group_size, tokens + 1, dtype=torch.bool, device=kv.starts.device)
    for group, step, chosen in reads:
        per_head = chosen.tokens.shape[1] // heads  # 1, or R for a choice per query head
        index = step.kv.starts.repeat_interleave(per_head, 1)[..., None] + step.slots(chosen.tokens)
        counted = torch.arange(index.shape[-1], device=index.device) < chosen.counts[..., None]
        # What lies behind a count goes into a column that is cut off.
        positions = kv.positions[torch.where(counted, index, 0)].masked_fill(~counted, tokens)
        spread = positions.view(len(positions), heads, per_head, -1).expand(-1, -1, group_size, -1)
        mine: Int[Tensor, "b"] = torch.arange(rows, device=index.device) if group.rows is None else group.rows
        masks[mine] = masks[mine].scatter(-1, spread, True)
    return masks[..., :tokens]


@torch.inference_mode()
def diagnose(
    model: Any,
    policies: Sequence[Policy],
    input_ids: Int[Tensor, "1 C"],
    *,
    answer_ids: Sequence[int] | None = None,
    new_tokens: int = 32,
    stop_ids: Sequence[int] = (),
    top_tokens: int | None = None,
    labels: Sequence[str] | None = None,
    backend: str = "auto",
    on_prompt_layer: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Force one answer on every policy and on the full cache, and compare what they read at every step.

    Args:
        input_ids: one prompt without padding.
        answer_ids: the tokens to feed; if None, the full cache's own greedy answer of at most `new_tokens`, up to one
            of `stop_ids`.
        top_tokens: size of the exact top set; each policy's budget if None. The oracle's curve takes the first one.
        labels: names for the policies, their own if None.

    Raises ValueError without policies, with an empty answer, and for a Full-KV among the policies: it is there anyway.
    """
    if not policies or any(policy.whole for policy in policies):
        raise ValueError("give at least one policy that evicts or selects; the full cache is compared with in any case")
    if (new_tokens < 1) if answer_ids is None else (len(answer_ids) == 0):
        raise ValueError("the answer is empty: at least one token must be fed for a step to look at")
    top = [top_tokens or policy.budget_tokens for policy in policies]
    watch = _Watch(top, top[0])
    cache = CompressedCache(model, [FullKV(), *policies], share_prompt=True, keep_positions=True, backend=backend)
    cache.on_prompt_layer = on_prompt_layer
    fed: list[int] = []
    with attach(model):
        logits = model(input_ids, logits_to_keep=1, use_cache=True, **cache.kwargs).logits
        for layer in cache.layers:
            if not isinstance(layer, CompressedLayer):
                layer.batch_repeat_interleave(len(policies) + 1)
        cache.observe_steps(watch)
        for step in range(new_tokens if answer_ids is None else len(answer_ids)):
            fed.append(int(logits[0, -1].argmax()) if answer_ids is None else int(answer_ids[step]))
            newest = torch.full((len(policies) + 1, 1), fed[-1], device=input_ids.device)
            logits = model(newest, use_cache=True, **cache.kwargs).logits
            if answer_ids is None and fed[-1] in stop_ids:
                break
    recall, mass, read, distinct = watch.arrays()
    names = [policy.name for policy in policies] if labels is None else list(labels)
    return Diagnosis(names, top, top[0], input_ids.shape[1], fed, recall, mass, read, distinct)
