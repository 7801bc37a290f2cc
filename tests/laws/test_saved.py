"""A saved context goes on as the live cache does: the same tokens and the same logits, bit for bit."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from rocketkv.contexts import FACTS_NAME, TENSORS_NAME, ContextError, load_context, save_context
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.policies.base import Policy
from support.bounds import assert_bounds_are_true
from support.models import left_padded, prompt, tiny_model
from support.policies import METHODS, POLICIES, HappensToReadAll
from support.trace import next_inputs

pytestmark = pytest.mark.law


class Run:
    """A cache with the mask of what it read."""

    def __init__(self, model: torch.nn.Module, cache: CompressedCache, mask: torch.Tensor | None = None) -> None:
        self.model, self.cache, self.mask = model, cache, mask

    def feed(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.mask, inputs = next_inputs(self.mask, ids, mask)
        with attach(self.model), torch.no_grad():
            return self.model(**inputs, **self.cache.kwargs).logits

    def steps(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        return [self.feed(tokens[:, column : column + 1]) for column in range(tokens.shape[1])]

    def copy_through(self, folder: Path) -> "Run":
        save_context(self.cache, folder)
        return Run(self.model, load_context(self.model, folder), self.mask)


def assert_goes_on_equally(live: Run, saved: Run, rows: int, steps: int) -> None:
    """Decode steps, then a turn, then two steps more."""
    for seed, tokens, more in ((1, 1, steps - 1), (2, 9, 2)):
        turn, answer = prompt(tokens, seed=seed, rows=rows), prompt(more, seed=seed + 10, rows=rows)
        assert torch.equal(live.feed(turn), saved.feed(turn))
        for one, other in zip(live.steps(answer), saved.steps(answer), strict=True):
            assert torch.equal(one, other)
    assert str(live.cache.report()) == str(saved.cache.report())


def started(
    model: torch.nn.Module, policy: Policy | Sequence[Policy], rows: list[torch.Tensor], steps: int, **options: object
) -> Run:
    run = Run(model, CompressedCache(model, policy, **options))
    run.feed(*left_padded(rows))
    run.steps(prompt(steps, seed=7, rows=len(rows)))
    return run


@pytest.mark.parametrize("name", [name for name in POLICIES if "+" not in name or name.startswith("adakv+")])
def test_every_policy(name: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    live = started(model, POLICIES[name](40), [prompt(100)], 3)
    saved = live.copy_through(tmp_path / "context")
    assert str(live.cache.report()) == str(saved.cache.report())
    assert_goes_on_equally(live, saved, 1, 3)


@pytest.mark.parametrize("name", ["rocketkv_mt", "quest", "sparq_mean"])
def test_past_growth_and_new_layouts(name: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    live = started(model, POLICIES[name](24), [prompt(60)], 5)
    saved = live.copy_through(tmp_path / "context")
    assert_goes_on_equally(live, saved, 1, 65)
    assert_bounds_are_true(saved.cache)


@pytest.mark.parametrize("tokens", [20, 38, 41])
def test_before_a_dense_plan_turns_sparse(tokens: int, tmp_path: Path) -> None:
    model = tiny_model("llama")
    live = started(model, METHODS["rocketkv"](40), [prompt(tokens)], 1)
    saved = live.copy_through(tmp_path / "context")
    assert saved.cache.states[0].whole == live.cache.states[0].whole
    assert_goes_on_equally(live, saved, 1, 22 if tokens == 20 else 4)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen2"])
def test_padded_rows_with_policies_of_their_own(architecture: str, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    names = ["rocketkv", "full", "rocketkv_mt", "sparq_mean"]
    policies = [POLICIES[name](40) for name in names]
    live = started(model, policies, [prompt(tokens, seed=tokens) for tokens in (90, 70, 110, 30)], 4)
    saved = live.copy_through(tmp_path / "context")
    assert_goes_on_equally(live, saved, 4, 14)


def test_after_the_batch_was_edited(tmp_path: Path) -> None:
    model = tiny_model("llama")
    policies = [POLICIES[name](40) for name in ("sparq_mean", "rocketkv", "loki")]
    live = started(model, policies, [prompt(90, seed=seed) for seed in range(3)], 4)
    order = torch.tensor([2, 0, 0])
    live.cache.reorder_cache(order)
    live.mask = live.mask[order]
    assert_goes_on_equally(live, live.copy_through(tmp_path / "context"), 3, 8)


def test_half_precision(tmp_path: Path) -> None:
    # On the reference ops: kernels for another dtype would be compiled for this test alone.
    model = tiny_model("llama", torch.bfloat16)
    live = started(model, METHODS["rocketkv"](40), [prompt(100)], 3, backend="reference")
    save_context(live.cache, tmp_path / "context")
    loaded = load_context(model, tmp_path / "context", backend="reference")
    assert_goes_on_equally(live, Run(model, loaded, live.mask), 1, 4)


def contents(run: Run) -> list[bytes]:
    """The bytes of everything held, room to grow included."""
    return [tensor.numpy().tobytes() for state in run.cache.states for tensor in state.tensors()]


def test_positions_are_saved_and_the_live_cache_is_left_alone(tmp_path: Path) -> None:
    model = tiny_model("llama")
    live = started(model, METHODS["rocketkv"](40), [prompt(100)], 3, keep_positions=True)
    before = contents(live)
    saved = live.copy_through(tmp_path / "context")
    assert contents(live) == before
    assert saved.cache.states[0].kv.positions is not None
    assert sorted(path.name for path in (tmp_path / "context").iterdir()) == [FACTS_NAME, TENSORS_NAME]


def refused(folder: Path, words: str, model: torch.nn.Module) -> None:
    with pytest.raises(ContextError, match=words) as caught:
        load_context(model, folder)
    assert "\n" not in str(caught.value)


def test_damage_is_found(tmp_path: Path) -> None:
    model, folder = tiny_model("llama"), tmp_path / "context"
    save_context(started(model, METHODS["rocketkv"](40), [prompt(100)], 1).cache, folder)
    tensors, facts = (folder / TENSORS_NAME).read_bytes(), (folder / FACTS_NAME).read_text()
    (folder / TENSORS_NAME).write_bytes(tensors[:-7])
    refused(folder, "incomplete", model)
    (folder / TENSORS_NAME).write_bytes(tensors[:-7] + b"\1" + tensors[-6:])
    refused(folder, "checksum", model)
    (folder / TENSORS_NAME).unlink()
    refused(folder, "No such file", model)
    (folder / TENSORS_NAME).write_bytes(tensors)
    for text, words in (
        (facts[:-20], "damaged"),
        (facts.replace('"columns": 101', '"columns": 102'), "checksum"),
        (facts.replace("context-1", "context-9"), "format"),
        ("[]", "damaged"),
    ):
        assert text != facts
        (folder / FACTS_NAME).write_text(text)
        refused(folder, words, model)
    (folder / FACTS_NAME).unlink()
    refused(folder, "no saved context", model)
    refused(tmp_path / "absent", "no saved context", model)


def test_another_model_is_refused(tmp_path: Path) -> None:
    model, folder = tiny_model("llama"), tmp_path / "context"
    save_context(started(model, METHODS["rocketkv"](40), [prompt(100)], 1).cache, folder)
    refused(folder, "kv_heads 2 there, 4 here|layers 2 there, 3 here", tiny_model("llama_mha"))
    refused(folder, "architecture llama there, qwen2 here", tiny_model("qwen2"))
    refused(folder, "dtype float32 there, bfloat16 here", tiny_model("llama", torch.bfloat16))
    refused(folder, "config", tiny_model("llama", rms_norm_eps=1e-3))
    weight = model.model.layers[0].self_attn.q_proj.weight.data
    weight[0, 0] += 1
    try:
        refused(folder, "weights", model)
    finally:
        weight[0, 0] -= 1


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    model, folder = tiny_model("llama"), tmp_path / "context"
    with pytest.raises(ContextError, match="nothing to save"):
        save_context(CompressedCache(model, METHODS["rocketkv"](40)), folder)
    run = Run(model, CompressedCache(model, METHODS["rocketkv"](40)))
    run.cache.begin_prefill(100)
    run.feed(prompt(60))
    with pytest.raises(ContextError, match="40 columns"):
        save_context(run.cache, folder)
    unknown = POLICIES["snapkv+hsa"](40)
    unknown = type(unknown)(budget_tokens=40, evictor=unknown.evictor, selector=HappensToReadAll(), label="mine")
    with pytest.raises(ContextError, match="HappensToReadAll is not in the registry"):
        save_context(started(model, unknown, [prompt(100)], 1).cache, folder)
    assert not folder.exists()
    folder.mkdir()
    live = started(model, METHODS["rocketkv"](40), [prompt(100)], 1)
    save_context(live.cache, folder)
    with pytest.raises(ContextError, match="exists already"):
        save_context(live.cache, folder)
    facts = json.loads((folder / FACTS_NAME).read_text())
    assert facts["policies"][0]["kind"] == "RocketKV"
