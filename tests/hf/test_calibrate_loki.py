"""Loki's calibration: principal components of the keys, a file of them, and what rank D and rank d mean."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.calibrate_loki import Moments, calibrate_loki, save_components
from rocketkv.hf.errors import CalibrationError
from rocketkv.policies.base import Policy
from rocketkv.policies.errors import PolicyMisfitError
from rocketkv.policies.exact import ExactTopK
from rocketkv.policies.loki import Loki
from rocketkv.policies.registry import make_policy
from support.models import prompt, tiny_model
from support.policies import composed
from support.trace import Trace


@pytest.fixture(scope="module")
def components():
    return calibrate_loki(tiny_model("llama"), prompt(700)[0].tolist(), chunk_tokens=256)


def test_by_hand() -> None:
    # Points on the diagonal and one beside it; their mean counts too.
    keys = torch.tensor([[[3.0, 3.0], [1.0, 1.0], [1.0, -1.0]]])  # [G, C, D]
    moments = Moments()
    moments.add([keys[:, :1]])
    moments.add([keys[:, 1:]])
    found = moments.components()
    torch.testing.assert_close(found.bases[0, 0, :, 0], torch.full((2,), 0.5**0.5, dtype=torch.float64))
    torch.testing.assert_close(found.energies[0, 0], torch.tensor([20 / 3, 2 / 3], dtype=torch.float64))


def test_chunks_of_keys_equal_all_at_once() -> None:
    keys = torch.randn(2, 60, 6) * torch.tensor([5, 4, 3, 2, 1, 0.5])
    moments = Moments()
    for part in keys.split(17, dim=1):
        moments.add([part])
    found = moments.components()
    for head in range(2):
        rotated = keys[head].double() @ found.bases[0, head]
        torch.testing.assert_close(rotated.T @ rotated / 60, torch.diag(found.energies[0, head]), atol=1e-5, rtol=1e-5)


def test_captured_energy_is_monotone_and_ends_at_one(components) -> None:
    head_dim = components.bases.shape[-1]
    shares = torch.stack([components.captured(rank) for rank in range(1, head_dim + 1)])
    assert bool((shares.diff(dim=0) >= 0).all())
    assert bool((shares.diff(dim=0).diff(dim=0) <= 1e-12).all()), "each dimension holds no more than the one before"
    torch.testing.assert_close(shares[-1], torch.ones_like(shares[-1]))
    assert components.tokens == 700


@pytest.mark.law
def test_at_rank_d_loki_is_exact_topk_per_group(components) -> None:
    model, ids, answer = tiny_model("llama"), prompt(120), prompt(6, seed=3)
    loki = Loki(components.bases.float(), rank=components.bases.shape[-1])

    def traced(policy: Policy) -> list:
        trace = Trace(model, policy)
        trace.prompt(ids)
        for column in range(answer.shape[1]):
            trace.step(answer[:, column : column + 1])
        return trace.reads

    # Loki reads t / 2 tokens, the oracle t.
    whole = composed("exact", make_policy("full").slots[0], ExactTopK(per="group"))
    rotated = composed("loki", make_policy("full").slots[0], loki)
    assert traced(rotated(40)) == traced(whole(20))


def test_file(components, tmp_path) -> None:
    path = tmp_path / "bases.safetensors"
    save_components(components, path, model_name="tiny", text="abc")
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
    assert facts["text_sha256"].startswith("ba7816bf") and facts["tokens"] == "700" and facts["model"] == "tiny"
    policy = make_policy("loki", 40, bases=str(path))
    assert torch.equal(policy.selector.bases, components.bases.float())
    assert policy == make_policy("loki", 40, bases=str(path))
    other = policy.selector.bases.flip(-1)
    assert Loki(other) != policy.selector, "other bases are another selector, whatever their name"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"other": torch.eye(4)}, "no tensor 'bases'"),
        ({"bases": torch.eye(4)}, "4 x 4 of torch.float32"),
        ({"bases": torch.ones(1, 2, 4, 3)}, "1 x 2 x 4 x 3"),
        ({"bases": torch.ones(1, 2, 4, 4)}, "off orthonormal by 4"),
        ({"bases": torch.full((1, 2, 4, 4), torch.nan)}, "off orthonormal by nan"),
        ({"bases": torch.eye(4).long()[None, None]}, "torch.int64"),
    ],
)
def test_files_that_are_no_bases(tensors, words, tmp_path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "file")
    with pytest.raises(ValueError, match=words) as caught:
        Loki.load_bases(str(tmp_path / "file"))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(ValueError, match="no such file; `rocketkv calibrate loki`"):
        Loki.load_bases(str(tmp_path / "absent"))
    (tmp_path / "text").write_text("words")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        Loki.load_bases(str(tmp_path / "text"))


@pytest.mark.parametrize("architecture", ["llama_mha", "qwen3"])
def test_bases_of_another_model(components, architecture) -> None:
    model = tiny_model(architecture)
    cache = CompressedCache(model, make_policy("loki", 40, bases=components.bases.float()))
    with attach(model), torch.no_grad(), pytest.raises(PolicyMisfitError, match="calibrate on this model"):
        model(prompt(90), **cache.kwargs)


def test_only_full_attention_layers_are_calibrated() -> None:
    found = calibrate_loki(tiny_model("gemma3"), prompt(100)[0].tolist())
    assert found.bases.shape[:2] == (2, 2)


def test_a_short_text_is_refused() -> None:
    with pytest.raises(CalibrationError, match="20 tokens, and 24 are the least"):
        calibrate_loki(tiny_model("llama"), prompt(20)[0].tolist())
