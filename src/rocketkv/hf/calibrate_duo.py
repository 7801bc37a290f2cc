"""DuoAttention's calibration, without training: which heads look back at a passkey while they repeat it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rocketkv import __version__
from rocketkv.budget import MIN_BUDGET_TOKENS
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.errors import CalibrationError, ModelError
from rocketkv.hf.store import locked, write_file
from rocketkv.policies.base import Evictor, Prompt
from rocketkv.policies.full import ReadAll
from rocketkv.policies.head_pattern import SIZES_NAME, TABLE_NAME, HeadPattern, Table
from rocketkv.policies.two_stage import Composed
from rocketkv.types import Bool, Float, Int, Tensor

FOLDER_NAME = "duoattention"
NAMES = ("amber", "birch", "coral", "delta", "ember", "fjord", "grove", "harbor", "indigo", "juniper")
FILLER = (
    "the river ran past the old mill and nobody counted the boats",
    "a grey cat slept on the warm stones near the gate",
    "rain came in from the west and the market closed early",
    "the letters lay on the table until someone moved them",
    "two men mended the fence while the geese looked on",
    "in the evening the lamps were lit along the long street",
    "bread and salt stood ready but the guests were late",
    "the teacher drew a circle and then a smaller one inside",
    "snow fell without a sound on the roofs of the town",
    "they carried the chairs into the garden one by one",
)


@dataclass(frozen=True)
class RetrievalPrompt:
    """A noise text with passkeys, the question, and the answer that is forced.

    `asked[i]` says which passkey the query of answer token i is about to repeat, None elsewhere; `needles[k]` are the
    tokens [start, stop) that hide passkey k.
    """

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    asked: tuple[int | None, ...]
    needles: tuple[tuple[int, int], ...]


def retrieval_prompt(
    tokenizer: Any, *, prompt_tokens: int, sink_tokens: int, recent_tokens: int, passkeys: int = 8, seed: int = 0
) -> RetrievalPrompt:
    """Passkeys at even distances in about `prompt_tokens` of noise, beyond the sinks and the newest tokens.

    Raises CalibrationError if sinks, newest tokens and passkeys leave no room.
    """
    rng = random.Random(seed)
    names = NAMES[:passkeys]
    keys = [str(rng.randrange(10**6, 10**7)) for _ in names]

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    hidden = [encode(f" The passkey of {name} is {key}. Remember it.") for name, key in zip(names, keys, strict=True)]
    question = encode("\n\nWhat are the passkeys that the text above names?\n")
    longest = max(map(len, hidden))
    room = prompt_tokens - sink_tokens - recent_tokens - sum(map(len, hidden))
    if room < longest * passkeys // 4:
        raise CalibrationError(
            f"prompt_tokens={prompt_tokens} leaves {max(room, 0)} tokens of noise beside {sink_tokens} sinks, "
            f"{recent_tokens} newest tokens and {passkeys} passkeys: give a longer prompt"
        )
    ids, needles = [], []
    special = tokenizer.bos_token_id
    ids += [] if special is None else [special]
    noise = _noise(encode, rng)
    _fill(ids, sink_tokens, noise)
    for needle in hidden:
        needles.append((len(ids), len(ids) + len(needle)))
        ids += needle
        _fill(ids, len(ids) + room // passkeys, noise)
    _fill(ids, len(ids) + recent_tokens, noise)
    ids += question
    answer: list[int] = []
    asked: list[int | None] = []
    for number, (name, key) in enumerate(zip(names, keys, strict=True)):
        lead, value, end = encode(f"The passkey of {name} is"), encode(f" {key}"), encode(".\n")
        answer += [*lead, *value, *end]
        # The query of the token before a digit is the one that must find that digit.
        asked += [None] * (len(lead) - 1) + [number] * len(value) + [None] * (1 + len(end))
    return RetrievalPrompt(tuple(ids), tuple(answer), tuple(asked), tuple(needles))


def _noise(encode: Callable[[str], list[int]], rng: random.Random) -> Callable[[], list[int]]:
    return lambda: encode(f" {rng.choice(FILLER).capitalize()}.")


def _fill(ids: list[int], until: int, noise: Callable[[], list[int]]) -> None:
    """Add noise to `ids` until there are `until` of them; the last sentence may be cut."""
    while len(ids) < until:
        ids += noise()[: until - len(ids)]


@dataclass(frozen=True)
class NeedleWatcher(Evictor):
    """Drops nothing; notes, per layer and query head, the attention that the answer pays to the passkeys asked for."""

    prompt: RetrievalPrompt
    masses: list[Float[Tensor, "G R"]] = field(default_factory=list, compare=False)

    @property
    def observes(self) -> int:
        return len(self.prompt.answer_ids)

    def keep(self, prompt: Prompt, kept_tokens: Int[Tensor, "B"]) -> Bool[Tensor, "B G C"]:
        assert prompt.queries is not None
        keys, device = prompt.keys[0].float(), prompt.keys.device
        asking = [token for token, needle in enumerate(self.prompt.asked) if needle is not None]
        # [G, R, asking, C]
        logits = prompt.queries[0, :, :, asking].float() @ keys[:, None].transpose(-1, -2) * prompt.scaling
        columns = keys.shape[1]
        stands_at = torch.tensor(asking, device=device)[:, None] + columns - self.observes
        weights = logits.masked_fill(torch.arange(columns, device=device) > stands_at, -torch.inf).softmax(-1)
        spans = [self.prompt.needles[self.prompt.asked[token] or 0] for token in asking]
        mass = [weights[:, :, place, start:stop].sum(-1) for place, (start, stop) in enumerate(spans)]
        self.masses.append(torch.stack(mass).mean(0))
        return torch.ones_like(prompt.keys[..., 0], dtype=torch.bool)


@torch.inference_mode()
def calibrate_duo(
    model: Any,
    tokenizer: Any,
    *,
    prompt_tokens: int = 1500,
    sink_tokens: int = 128,
    recent_tokens: int = 256,
    passkeys: int = 8,
    seed: int = 0,
    on_prompt_layer: Callable[[int, int], None] | None = None,
) -> HeadPattern:
    """A pattern from one prompt: the mean attention that goes to a passkey while the model is made to repeat it.

    A KV head counts as much as the best of its query heads, since one that retrieves is enough to need the tokens.
    A value is the share of heads with less, so that the threshold is the share of heads that stream: the masses
    themselves fall off so fast that a threshold on them says little. Prompt and answer are read once; only the answer's
    queries are looked at, so that no T x T matrix is formed.

    Args:
        prompt_tokens: length of the noise text, about; more than sinks, newest tokens and passkeys together.
        on_prompt_layer: called with (layers done, layers) while the prompt is read.

    Raises CalibrationError for a prompt that is too short.

    Differs: DuoAttention trains a gate per head on such prompts; this measures attention instead.
    """
    prompt = retrieval_prompt(
        tokenizer,
        prompt_tokens=prompt_tokens,
        sink_tokens=sink_tokens,
        recent_tokens=recent_tokens,
        passkeys=passkeys,
        seed=seed,
    )
    watcher = NeedleWatcher(prompt)
    # Any budget below the prompt will do: it has the evictor called, which keeps everything.
    policy = Composed(budget_tokens=MIN_BUDGET_TOKENS, evictor=watcher, selector=ReadAll(), label="calibration")
    cache = CompressedCache(model, policy)
    cache.on_prompt_layer = on_prompt_layer
    with attach(model):
        ids = torch.tensor([[*prompt.prompt_ids, *prompt.answer_ids]], device=model.device)
        model(ids, use_cache=True, logits_to_keep=1, **cache.kwargs)
    mass = torch.stack(watcher.masses).amax(-1)  # [layers, G]
    return HeadPattern(ranked(mass), sink_tokens, recent_tokens)


def ranked(mass: Float[Tensor, "layers G"]) -> Table:
    """Each head's share of heads with less mass: 1 for the strongest, 0 for the weakest."""
    ranks = mass.flatten().argsort(stable=True).argsort(stable=True).view_as(mass).double()
    values = ranks / max(mass.numel() - 1, 1)
    return tuple(tuple(round(value, 6) for value in row) for row in values.tolist())


def save_pattern(pattern: HeadPattern, folder: Path, *, model_name: str) -> None:
    """Write the published form, a table and a JSON, into `folder`. Raises ModelError if that is a file."""
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is a file: give a folder for {TABLE_NAME} and {SIZES_NAME}")
    facts = {"model": model_name, "rocketkv": __version__}
    with locked(folder):
        write_file(folder / SIZES_NAME, iter([pattern.sizes_text(**facts).encode()]))
        write_file(folder / TABLE_NAME, iter([pattern.table_text().encode()]))
