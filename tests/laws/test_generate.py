"""Every way to generate: streaming, sampling, several sequences, through rocketkv.generate and through the
model.
"""

import pytest
import torch

import rocketkv
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from support.models import ARCHITECTURES, DTYPES, PAD, greedy, left_padded, prompt, tiny_model
from support.policies import POLICIES

pytestmark = pytest.mark.law


class Streamer:
    """What a text streamer is to generate: `put` for the prompt, then for every token, then `end`."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.calls.append(value.reshape(-1).tolist())

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("name", ["full", "rocketkv"])
def test_tokens_stream_one_by_one(name: str) -> None:
    model, streamer = tiny_model("llama"), Streamer()
    out = rocketkv.generate(model, POLICIES[name](40), input_ids=prompt(90), streamer=streamer, **greedy(7)).sequences[
        0
    ]
    assert streamer.ended
    assert streamer.calls == [out[:90].tolist(), *([token] for token in out[90:].tolist())]


@pytest.mark.parametrize("name", POLICIES)
def test_both_ways_in_are_one(name: str) -> None:
    model, policy = tiny_model("llama"), POLICIES[name](40)
    ids, mask = left_padded([prompt(90), prompt(33, seed=1)])
    simple = rocketkv.generate(model, policy, input_ids=ids, attention_mask=mask, **greedy(6))
    cache = CompressedCache(model, policy)
    with rocketkv.attach(model):
        long = model.generate(input_ids=ids, attention_mask=mask, **cache.kwargs, **greedy(6))
    assert torch.equal(simple.sequences, long.sequences)
    assert all(torch.equal(a, b) for a, b in zip(simple.logits, long.logits, strict=True))


def test_a_seed_makes_samples_repeatable() -> None:
    model, policy, drawn = tiny_model("llama"), POLICIES["rocketkv"](40), []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        options = greedy(8, num_return_sequences=3) | {"do_sample": True}
        drawn.append(rocketkv.generate(model, policy, input_ids=prompt(90), **options).sequences)
    assert drawn[0].shape == (3, 98)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert len({tuple(row.tolist()) for row in drawn[0]}) == 3


def test_rows_that_end_early_do_not_disturb_the_others() -> None:
    model, policy = tiny_model("llama"), POLICIES["rocketkv"](40)
    ids, mask = left_padded([prompt(90), prompt(70, seed=1)])
    free = rocketkv.generate(model, policy, input_ids=ids, attention_mask=mask, **greedy(8)).sequences
    end = int(free[0, 92])
    assert end not in free[1, 90:]
    ended = rocketkv.generate(
        model, policy, input_ids=ids, attention_mask=mask, **greedy(8, eos_token_id=end)
    ).sequences
    assert torch.equal(ended[1], free[1])
    assert (ended[0, 93:] == PAD).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_and_dtype_selects(architecture: str, dtype: str) -> None:
    model, policy = tiny_model(architecture, DTYPES[dtype], "eager"), POLICIES["rocketkv"](40)
    cache = CompressedCache(model, policy)
    out = rocketkv.generate(model, policy, cache=cache, input_ids=prompt(110), **greedy(5))
    assert all(bool(step.isfinite().all()) for step in out.logits)
    report = cache.report()
    assert report.evicted_tokens > 0
    assert report.sparse_steps == 4 * len(cache.states)
    for state in cache.states:
        assert state.kv.keys.dtype == DTYPES[dtype]
        assert state.kv.lengths.shape[1] == model.config.num_key_value_heads


def test_input_embeddings() -> None:
    model, policy, ids = tiny_model("llama"), POLICIES["rocketkv"](40), prompt(90)
    by_ids = rocketkv.generate(model, policy, input_ids=ids, **greedy(5)).sequences[0, 90:]
    embeds = model.get_input_embeddings()(ids)
    out = rocketkv.generate(model, policy, inputs_embeds=embeds, **greedy(5)).sequences[0]
    assert torch.equal(out[-5:], by_ids)


def test_one_step_reports_what_it_read() -> None:
    model, policy = tiny_model("llama"), POLICIES["evict_only"](40)
    cache = CompressedCache(model, policy)
    with attach(model), torch.no_grad():
        model(prompt(90), **cache.kwargs)
        model(prompt(1), **cache.kwargs)
    assert cache.report().step_bytes == 41 * 2 * 12 * 4 * 2 * 2  # tokens x pair x float32 x heads x layers


@pytest.mark.parametrize("name", POLICIES)
def test_fresh_memory_may_hold_anything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, policy = tiny_model("llama"), POLICIES[name](24)
    ids, mask = left_padded([prompt(90), prompt(33, seed=1)])
    clean = rocketkv.generate(model, policy, input_ids=ids, attention_mask=mask, **greedy(12))
    fresh = torch.Tensor.new_empty

    def poisoned(self: torch.Tensor, *size: object, **options: object) -> torch.Tensor:
        memory = fresh(self, *size, **options)
        return memory.fill_(float("nan")) if memory.is_floating_point() else memory

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    again = rocketkv.generate(model, policy, input_ids=ids, attention_mask=mask, **greedy(12))
    assert torch.equal(clean.sequences, again.sequences)
    assert all(torch.equal(a, b) for a, b in zip(clean.logits, again.logits, strict=True))


def test_a_prompt_at_the_models_limit() -> None:
    model = tiny_model("llama", max_position_embeddings=128)
    cache = CompressedCache(model, POLICIES["rocketkv"](40))
    out = rocketkv.generate(model, POLICIES["rocketkv"](40), cache=cache, input_ids=prompt(128), **greedy(1))
    assert torch.equal(out.logits[0], model.generate(prompt(128), **greedy(1)).logits[0])
    assert cache.report().tokens_seen == [128]


def test_head_counts_come_from_the_tensors() -> None:
    # Under tensor parallelism every rank sees its own heads, whatever the config says.
    model, policy = tiny_model("llama", num_hidden_layers=1), POLICIES["rocketkv"](40)
    before = rocketkv.generate(model, policy, input_ids=prompt(90), **greedy(5)).sequences
    heads = model.config.num_attention_heads, model.config.num_key_value_heads
    model.config.num_attention_heads, model.config.num_key_value_heads = 8, 4
    try:
        after = rocketkv.generate(model, policy, input_ids=prompt(90), **greedy(5)).sequences
    finally:
        model.config.num_attention_heads, model.config.num_key_value_heads = heads
    assert torch.equal(before, after)
