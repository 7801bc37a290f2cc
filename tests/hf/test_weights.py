"""A model with int8 or streamed weights: what is replaced and shared, and how near it stays to the model in floats."""

import copy
import mmap
from pathlib import Path

import pytest
import torch

import rocketkv
from rocketkv.hf.errors import ModelError
from rocketkv.hf.weights import Int8Embedding, StreamedLinear, hold_weights, quantise_weights, stream_weights
from support.models import ARCHITECTURES, DTYPES, greedy, left_padded, prompt, tiny_model


def quantised(architecture: str, dtype: torch.dtype = torch.float32, **changes: object) -> torch.nn.Module:
    return quantise_weights(copy.deepcopy(tiny_model(architecture, dtype, **changes)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_stay_near_those_of_the_floats(architecture: str) -> None:
    ids = prompt(40)
    with torch.no_grad():
        exact, near = tiny_model(architecture)(ids).logits, quantised(architecture)(ids).logits
    assert not torch.equal(exact, near)
    # Half a scale in every weight: a few percent of the spread of random logits.
    assert float((exact - near).std()) < 0.1 * float(exact.std())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_linear_layer_keeps_its_floats(architecture: str) -> None:
    model = quantised(architecture)
    assert not any(type(module) is torch.nn.Linear for module in model.modules())
    held = sum(p.numel() for p in model.parameters() if p.dtype == torch.int8)
    assert held > 0.5 * model.num_parameters()
    assert model.dtype == torch.float32


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_stay_tied(tied: bool) -> None:
    model = quantised("llama", tie_word_embeddings=tied)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embedding, Int8Embedding) and isinstance(head, StreamedLinear)
    assert (embedding.weight is head.weight) == tied


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_equals_reading_and_batches_equal_rows(dtype: str) -> None:
    model, policy = quantised("qwen2", DTYPES[dtype]), rocketkv.FullKV()
    ids, mask = left_padded([prompt(30), prompt(12, seed=1)])
    together = rocketkv.generate(model, policy, input_ids=ids, attention_mask=mask, **greedy(4))
    assert together.sequences.shape == (2, 34)
    with torch.no_grad():
        logits = model(prompt(30)).logits
    assert logits.dtype == DTYPES[dtype]


def test_a_compressed_cache_works_on_it() -> None:
    model, policy = quantised("llama"), rocketkv.RocketKV(budget_tokens=40)
    out = rocketkv.generate(model, policy, input_ids=prompt(300), **greedy(4))
    assert out.sequences.shape == (1, 304)


def streamed(architecture: str, dtype: torch.dtype = torch.float32, **changes: object) -> torch.nn.Module:
    return stream_weights(copy.deepcopy(tiny_model(architecture, dtype, **changes)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_streamed_weights_are_the_model_s_own(architecture: str, dtype: str) -> None:
    plain, model = tiny_model(architecture, DTYPES[dtype]), streamed(architecture, DTYPES[dtype])
    assert not any(type(module) is torch.nn.Linear for module in model.modules())
    held = model.state_dict()
    assert all(torch.equal(held[name], weight) for name, weight in plain.state_dict().items())
    with torch.no_grad():
        many, few = prompt(40), prompt(1)
        assert torch.equal(model(many).logits, plain(many).logits)  # PyTorch's own product
        ours, theirs = model(few).logits, plain(few).logits
    assert ours.dtype == theirs.dtype == DTYPES[dtype]
    unit = torch.finfo(DTYPES[dtype]).eps
    assert float((ours.double() - theirs.double()).abs().max()) <= 64 * unit * float(theirs.double().abs().max())


@pytest.mark.parametrize("tied", [True, False])
def test_streamed_tied_weights_stay_tied(tied: bool) -> None:
    model = streamed("llama", tie_word_embeddings=tied)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert type(embedding) is torch.nn.Embedding and isinstance(head, StreamedLinear)
    assert (embedding.weight is head.weight) == tied


@pytest.mark.parametrize("weights", ["streamed", "int8"])
def test_a_model_survives_a_copy_and_a_file(weights: str, tmp_path: Path) -> None:
    model = hold_weights(copy.deepcopy(tiny_model("qwen2", torch.bfloat16)), weights)
    torch.save(model, tmp_path / "model.pt")
    with torch.no_grad():
        expected = model(prompt(1)).logits
        assert torch.equal(copy.deepcopy(model)(prompt(1)).logits, expected)
        again = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(again(prompt(1)).logits, expected)


def test_without_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = streamed("llama")
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    with torch.no_grad():
        assert torch.equal(streamed("llama")(prompt(1)).logits, expected(prompt(1)).logits)


def test_refusals() -> None:
    with pytest.raises(ModelError, match="no linear layer"):
        quantise_weights(torch.nn.Sequential(torch.nn.ReLU()))
    with pytest.raises(ModelError, match="choose from float, streamed, int8"):
        rocketkv.load_model("anything", weights="int4")
