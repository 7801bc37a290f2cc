"""A model with int8 weights: what is replaced, what is shared, and how near it stays to the model in floats."""

import copy

import pytest
import torch

import rocketkv
from rocketkv.hf.errors import ModelError
from rocketkv.hf.weights import Int8Embedding, Int8Linear, quantise_weights
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
    assert isinstance(embedding, Int8Embedding) and isinstance(head, Int8Linear)
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


def test_refusals() -> None:
    with pytest.raises(ModelError, match="no linear layer"):
        quantise_weights(torch.nn.Sequential(torch.nn.ReLU()))
    with pytest.raises(ModelError, match="choose from float, int8"):
        rocketkv.load_model("anything", weights="int4")
