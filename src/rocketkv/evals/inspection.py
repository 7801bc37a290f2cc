"""One prompt and its answer under one policy: which prompt tokens were kept, and which tokens every step read.

The prompt is read once. The policy answers from it, and beside it the full cache, whose attention says where in the
prompt the model itself looks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rocketkv.cache.layer import LayerCache
from rocketkv.cache.observer import Observer, Read
from rocketkv.evals.diagnostics import read_masks
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache, CompressedLayer
from rocketkv.hf.snapshot import PromptSnapshot
from rocketkv.hf.together import decode_rows, end_ids
from rocketkv.ops.ragged import padded_index
from rocketkv.policies.base import Policy
from rocketkv.policies.exact import token_probabilities
from rocketkv.policies.full import FullKV
from rocketkv.types import Bool, Float, Tensor


@dataclass(frozen=True)
class Inspection:
    """Arrays over P prompt tokens, N answer tokens, L compressed layers and G KV heads.

    `kept` [L, G, P] says which prompt tokens were left to read from when the prompt had been read. `reads`
    [N - 1, L, H, bytes] are bits, the lowest first, one for each token of the prompt and the answer: what was read by
    the step that chose answer token 2, 3 and so on (the first one comes from the prompt's own dense pass). H is G, or a
    multiple of it where the query heads of a group read differently. `layers` [L] are numbers in the model.
    `full_ids` are the answer from the full cache, and `attention` [L, G, P] the attention that its decode steps pay to
    each prompt token, mean over steps and query heads; None where it was not run or took no step.
    """

    prompt_ids: list[int]
    answer_ids: list[int]
    layers: list[int]
    kept: np.ndarray
    reads: np.ndarray
    full_ids: list[int] | None = None
    attention: np.ndarray | None = None

    @property
    def prompt_tokens(self) -> int:
        """P, how many tokens the prompt has."""
        return len(self.prompt_ids)

    @property
    def steps(self) -> int:
        """Decode steps, one fewer than tokens of the answer."""
        return len(self.reads)

    @property
    def pairs(self) -> int:
        """Layers times KV heads."""
        return self.kept.shape[0] * self.kept.shape[1]

    def step_reads(self, step: int) -> np.ndarray:
        """What decode step `step`, from 0, read: bool [L, H, P + step + 1]."""
        bits = np.unpackbits(self.reads[step], axis=-1, bitorder="little")
        return bits[..., : self.prompt_tokens + step + 1].astype(bool)

    def prompt_reads(self) -> np.ndarray:
        """The share of decode steps and query heads that read each prompt token: float [L, G, P], 0 without a step."""
        layers, heads, tokens = self.kept.shape
        total = np.zeros((layers, heads, tokens))
        for step in range(self.steps):
            mine = self.step_reads(step)[..., :tokens]
            total += mine.reshape(layers, heads, -1, tokens).mean(2)
        return total / max(self.steps, 1)

    def reads_everything(self) -> np.ndarray:
        """Which layers and heads kept every prompt token and read all they held at every step: bool [L, G]."""
        layers, heads, _ = self.kept.shape
        everything: np.ndarray = np.all(self.kept, axis=-1)
        for step in range(self.steps):
            everything = everything & self.step_reads(step).all(-1).reshape(layers, heads, -1).all(-1)
        return everything


class _Reads:
    """An observer that notes what the only row of a batch read, as bits."""

    def __init__(self) -> None:
        self.seen: dict[int, list[np.ndarray]] = {}

    def __call__(self, cache: LayerCache, q: Float[Tensor, "B G R D"], scaling: float, reads: list[Read]) -> None:
        assert cache.row_tokens is not None
        mask = read_masks(cache, reads, int(cache.row_tokens[0]), q.shape[2])[0]  # [G, R, T]
        self.seen.setdefault(cache.layer, []).append(np.packbits(mask.cpu().numpy(), axis=-1, bitorder="little"))

    def array(self, layers: int) -> np.ndarray:
        """Bits [steps, L, H, bytes]; H is G where the query heads of every group read alike."""
        if not self.seen:
            return np.zeros((0, layers, 1, 0), np.uint8)
        steps, width = len(self.seen[0]), self.seen[0][-1].shape[-1]
        bits = np.zeros((steps, layers, *self.seen[0][0].shape[:2], width), np.uint8)
        for layer, rows in self.seen.items():
            for step, row in enumerate(rows):
                bits[step, layer, :, :, : row.shape[-1]] = row
        if (bits == bits[:, :, :, :1]).all():
            bits = bits[:, :, :, :1]
        return bits.reshape(steps, layers, -1, width)


class _Attention:
    """An observer that adds up what a full cache's steps attend to, over the first `tokens`."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.total: dict[int, Float[Tensor, "G P"]] = {}
        self.steps = 0

    def __call__(self, cache: LayerCache, q: Float[Tensor, "B G R D"], scaling: float, reads: list[Read]) -> None:
        keys = cache.columns_held()[0]
        lengths = torch.full(keys.shape[:2], keys.shape[2], device=keys.device)
        mine = token_probabilities(q, keys, lengths, scaling)[0, :, :, : self.tokens].mean(1)
        self.steps += cache.layer == 0
        self.total[cache.layer] = self.total[cache.layer] + mine if cache.layer in self.total else mine

    def mean(self) -> np.ndarray | None:
        """[L, G, P], None without a step."""
        if not self.steps:
            return None
        layers = [self.total[layer] / self.steps for layer in sorted(self.total)]
        return np.stack([layer.float().cpu().numpy() for layer in layers])


def kept_mask(state: LayerCache, tokens: int) -> Bool[Tensor, "B G P"]:
    """Which of each row's first `tokens` may be read: what is stored, or of it the candidates of this turn."""
    kv = state.kv
    if kv is None:
        rows, heads = state.columns_held()[0].shape[:2]
        return torch.ones(rows, heads, tokens, dtype=torch.bool)
    assert kv.positions is not None, "ask for them: CompressedCache(..., keep_positions=True)"
    candidates = None if state.ragged is None else state.ragged.candidates
    lengths = kv.lengths if candidates is None else candidates.lengths
    slots, held = padded_index(torch.zeros_like(lengths), lengths, int(lengths.max()))
    if candidates is not None:
        slots = candidates.slots[candidates.starts[..., None] + slots].long()
    positions = kv.positions[kv.starts[..., None] + slots].masked_fill(~held, tokens).clamp(max=tokens)
    mask = torch.zeros(*lengths.shape, tokens + 1, dtype=torch.bool, device=lengths.device)
    return mask.scatter(-1, positions, True)[..., :tokens]


@torch.inference_mode()
def inspect_answer(
    model: Any,
    policy: Policy,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int] | None = None,
    planned_new_tokens: int = 0,
    full: bool = True,
    backend: str = "auto",
    on_prompt_layer: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Answer one prompt greedily under `policy`, and note what was kept and read.

    Args:
        prompt_ids: the tokens of one prompt.
        stop_ids: tokens that end the answer, the model's own end tokens if None.
        full: also answer from the full cache; without effect under Full-KV itself.

    Raises ValueError for an empty prompt and for `max_new_tokens` below 1.
    """
    if not prompt_ids or max_new_tokens < 1:
        raise ValueError(
            f"a prompt of {len(prompt_ids)} tokens and max_new_tokens={max_new_tokens}: give at least one of each"
        )
    beside = [FullKV()] if full and not policy.whole else []
    stops = set(end_ids(model) if stop_ids is None else stop_ids)
    ids = torch.tensor([list(prompt_ids)], device=model.device)
    snapshot = PromptSnapshot(
        model, [policy, *beside], ids, planned_new_tokens=planned_new_tokens, backend=backend,
        on_prompt_layer=on_prompt_layer,
    )  # fmt: skip

    def answer(mine: Policy, observer: Observer) -> tuple[list[int], CompressedCache]:
        cache = snapshot.cache_for([mine], keep_positions=True)
        cache.observe_steps(observer)
        with attach(model):
            rows = decode_rows(model, cache, snapshot.logits, max_new_tokens=max_new_tokens, stop_ids=stops)
        return rows[0], cache

    reads, attention = _Reads(), _Attention(len(prompt_ids))
    answer_ids, cache = answer(policy, reads)
    kept = np.stack([kept_mask(state, len(prompt_ids))[0].cpu().numpy() for state in cache.states])
    layers = [layer.number for layer in cache.layers if isinstance(layer, CompressedLayer)]
    bits = reads.array(len(layers))
    del cache
    full_ids = answer(beside[0], attention)[0] if beside else None
    return Inspection(list(prompt_ids), answer_ids, layers, kept, bits, full_ids, attention.mean())
