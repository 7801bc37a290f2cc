"""A plan that covers everything is the uncompressed model, bit for bit; one that reads everything is it to
tolerance.
"""

import pytest
import torch

import rocketkv
from rocketkv.hf.cache import CompressedCache
from support.models import ARCHITECTURES, DTYPES, greedy, left_padded, prompt, tiny_model
from support.policies import EVERYTHING_READ, POLICIES

pytestmark = pytest.mark.law


def assert_bit_identical(model: torch.nn.Module, policy: object, inputs: dict, **more: object) -> None:
    """Tokens and the logits of every step are the plain model's."""
    plain = model.generate(**inputs, **greedy(9, **more))
    ours = rocketkv.generate(model, policy, **inputs, **greedy(9, **more))
    assert torch.equal(plain.sequences, ours.sequences)
    assert len(plain.logits) == len(ours.logits)
    for step, (expected, found) in enumerate(zip(plain.logits, ours.logits, strict=True)):
        assert torch.equal(expected, found), f"step {step} differs by {(expected - found).abs().max()}"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_dtype_and_attention(architecture: str, dtype: str, attention: str) -> None:
    model = tiny_model(architecture, DTYPES[dtype], attention)
    assert_bit_identical(model, POLICIES["rocketkv"](64), {"input_ids": prompt(55)})
    ids, mask = left_padded([prompt(50, seed=1), prompt(23)])
    inputs = {"input_ids": ids, "attention_mask": mask}
    assert_bit_identical(model, POLICIES["rocketkv"](64), inputs)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy(llama: torch.nn.Module, name: str) -> None:
    assert_bit_identical(llama, POLICIES[name](64), {"input_ids": prompt(55)})
    assert_bit_identical(llama, POLICIES[name](64), {"input_ids": prompt(1)})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_full_kv_at_any_length(architecture: str, dtype: str) -> None:
    model = tiny_model(architecture, DTYPES[dtype])
    ids, mask = left_padded([prompt(150), prompt(61), prompt(1)])
    assert_bit_identical(model, POLICIES["full"](64), {"input_ids": ids, "attention_mask": mask})


def test_beams_and_samples(llama: torch.nn.Module) -> None:
    policy = POLICIES["rocketkv"](64)
    plain = llama.generate(prompt(30), **greedy(9, num_beams=3))
    ours = rocketkv.generate(llama, policy, input_ids=prompt(30), **greedy(9, num_beams=3))
    assert torch.equal(plain.sequences, ours.sequences)
    drawn = []
    for call in (llama.generate, lambda **kwargs: rocketkv.generate(llama, policy, **kwargs)):
        torch.manual_seed(3)
        drawn.append(call(input_ids=prompt(30), **greedy(9, num_return_sequences=4) | {"do_sample": True}))
    assert torch.equal(drawn[0].sequences, drawn[1].sequences)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_second_turn_inside_the_budget(architecture: str, attention: str) -> None:
    model, policy = tiny_model(architecture, attention=attention), POLICIES["rocketkv"](100)
    cache, plain = CompressedCache(model, policy), None
    ids, mask = left_padded([prompt(30), prompt(17)])
    for seed in (1, 2):
        ours = rocketkv.generate(model, policy, cache=cache, input_ids=ids, attention_mask=mask, **greedy(5))
        plain = model.generate(ids, attention_mask=mask, **greedy(5))
        assert torch.equal(plain.sequences, ours.sequences)
        ids = torch.cat([ours.sequences, prompt(11, seed=seed, rows=2)], 1)
        mask = torch.cat([mask, torch.ones(2, 16, dtype=mask.dtype)], 1)


def test_chunks_inside_the_budget(llama: torch.nn.Module) -> None:
    # In chunks the plain model rounds differently than at once, so the plain model in the same chunks is the
    # measure.
    assert_bit_identical(llama, POLICIES["rocketkv"](64), {"input_ids": prompt(50)}, prefill_chunk_size=16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EVERYTHING_READ)
def test_a_sparse_plan_that_reads_everything(name: str, dtype: str) -> None:
    model = tiny_model("llama", DTYPES[dtype])
    ids, mask = left_padded([prompt(90), prompt(50)])
    ours = rocketkv.generate(
        model, EVERYTHING_READ[name](24), input_ids=ids, attention_mask=mask, **greedy(6, min_new_tokens=6)
    )
    assert_close_to_plain(model, ours, mask)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_planned_answer_makes_the_plan_sparse_but_not_the_reading(architecture: str) -> None:
    # 60 tokens and 100 planned ones exceed the budget of 80: pages are laid out, and 70 held tokens are all
    # read.
    model, policy = tiny_model(architecture), POLICIES["rocketkv"](80)
    cache = CompressedCache(model, policy, planned_new_tokens=100)
    ids, mask = left_padded([prompt(60), prompt(41)])
    ours = rocketkv.generate(model, policy, cache=cache, input_ids=ids, attention_mask=mask, **greedy(9))
    assert not cache.states[0].plans[0].dense
    assert cache.report().sparse_steps == 0
    assert_close_to_plain(model, ours, mask)


def test_a_dense_row_beside_a_sparse_one(llama: torch.nn.Module) -> None:
    ids, mask = left_padded([prompt(120), prompt(30)])
    ours = rocketkv.generate(llama, POLICIES["rocketkv"](48), input_ids=ids, attention_mask=mask, **greedy(9))
    alone = llama.generate(prompt(30), **greedy(9))
    assert torch.equal(ours.sequences[1, 120:], alone.sequences[0, 30:])
    for expected, found in zip(alone.logits, ours.logits, strict=True):
        torch.testing.assert_close(found[1], expected[0], atol=1e-4, rtol=1e-4)


def assert_close_to_plain(model: torch.nn.Module, ours: object, mask: torch.Tensor) -> None:
    """The logits of every step are the plain model's on the same tokens, to a few roundings of the dtype."""
    new = len(ours.logits)
    full = torch.cat([mask, torch.ones(mask.shape[0], new, dtype=mask.dtype)], 1)
    positions = (full.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        plain = model(ours.sequences, attention_mask=full, position_ids=positions).logits
    start = mask.shape[1] - 1
    slack = 32 * torch.finfo(model.dtype).eps * float(plain.abs().max())
    for step, found in enumerate(ours.logits):
        torch.testing.assert_close(found.float(), plain[:, start + step].float(), atol=slack, rtol=0)
