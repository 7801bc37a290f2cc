"""A decode step in one call gives what its parts give, bit for bit, and gives way where more is due."""

import copy
from types import SimpleNamespace

import pytest
import torch

from rocketkv.attend import decode_attend
from rocketkv.cache.layer import LayerCache
from rocketkv.cache.ragged import RaggedLayer
from rocketkv.cache.saved import layer_state
from rocketkv.ops.errors import BackendError
from rocketkv.policies.base import Policy
from rocketkv.policies.registry import make_policy
from support.bounds import assert_bounds_are_true
from support.layers import prompt_of

GROUPS, HEADS, DIM = 2, 3, 24


def layers(
    monkeypatch: pytest.MonkeyPatch, policies: list[Policy], tokens: int, dtype: torch.dtype
) -> tuple[LayerCache, LayerCache]:
    """The same read prompt twice: one layer steps as it likes, the other in parts."""
    torch.manual_seed(0)
    shape = (len(policies), GROUPS, tokens, DIM)
    q = torch.randn(len(policies), GROUPS, HEADS, tokens, DIM).to(dtype)
    one = prompt_of(policies, q, torch.randn(shape).to(dtype), torch.randn(shape).to(dtype))
    parts = copy.deepcopy(one)
    assert parts.ragged is not None
    monkeypatch.setattr(parts.ragged, "whole_step", lambda *_: None)
    return one, parts


def never(*_: object) -> torch.Tensor:
    raise AssertionError("a layer that selects has no dense step")


def token_of(generator: torch.Generator, dtype: torch.dtype, rows: int) -> list[torch.Tensor]:
    """Query, key and value."""
    shapes = (rows, GROUPS, HEADS, 1, DIM), (rows, GROUPS, 1, DIM), (rows, GROUPS, 1, DIM)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def step(layer: LayerCache, seed: int, dtype: torch.dtype, rows: int) -> torch.Tensor:
    token = token_of(torch.Generator().manual_seed(seed), dtype, rows)
    return decode_attend(*token, layer, scaling=0.3, dense=never)


def same(one: LayerCache, parts: LayerCache) -> None:
    """Every stored number, bound and count; memory that holds nothing may differ. The last step was one call."""
    assert one.ragged is not None and one.ragged._fused is not None
    (mine, my_facts), (others, other_facts) = layer_state(one), layer_state(parts)
    assert mine.keys() == others.keys() and my_facts == other_facts
    assert all(torch.equal(mine[name], others[name]) for name in mine)
    assert assert_bounds_are_true(SimpleNamespace(states=[one])) > 0  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["rocketkv", "rocketkv-mt", "hsa"])
def test_one_call_gives_the_bits_of_its_parts(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    one, parts = layers(monkeypatch, [make_policy(name, 24), make_policy(name, 40)], 300, dtype)
    whole = 0
    for seed in range(40):
        assert one.ragged is not None
        before = one.ragged._fused
        assert torch.equal(step(one, seed, dtype, 2), step(parts, seed, dtype, 2))
        whole += one.ragged._fused is not None and one.ragged._fused is before
    same(one, parts)
    assert whole > 20, "most steps have nothing else due"


def test_options_reach_the_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"sink_tokens": 2, "local_tokens": 3, "estimate_share": 0.25}
    one, parts = layers(monkeypatch, [make_policy("rocketkv", 24, **options)], 300, torch.float32)
    for seed in range(12):
        assert torch.equal(step(one, seed, torch.float32, 1), step(parts, seed, torch.float32, 1))
    same(one, parts)


def test_a_copy_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one, parts = layers(monkeypatch, [make_policy("rocketkv", 24)], 300, torch.float32)
    for layer in (one, parts):
        step(layer, 0, torch.float32, 1)
    fork = copy.deepcopy(one)
    for seed in range(1, 6):
        step(fork, 100 + seed, torch.float32, 1)
        assert torch.equal(step(one, seed, torch.float32, 1), step(parts, seed, torch.float32, 1))
    same(one, parts)


def test_an_observer_sees_every_step_and_the_one_call_takes_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one, parts = layers(monkeypatch, [make_policy("rocketkv", 24)], 300, torch.float32)
    seen: list[int] = []
    for seed in range(12):
        one.observer = (lambda *_: seen.append(1)) if 3 <= seed < 6 else None
        assert torch.equal(step(one, seed, torch.float32, 1), step(parts, seed, torch.float32, 1))
    same(one, parts)
    assert len(seen) == 3


def test_rows_that_move_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, parts = layers(monkeypatch, [make_policy("rocketkv", 24), make_policy("rocketkv", 32)], 300, torch.float32)
    for seed in range(3):
        assert torch.equal(step(one, seed, torch.float32, 2), step(parts, seed, torch.float32, 2))
    for layer in (one, parts):
        layer.select_rows(torch.tensor([1]))
    for seed in range(3, 8):
        assert torch.equal(step(one, seed, torch.float32, 1), step(parts, seed, torch.float32, 1))
    same(one, parts)


def test_lengths_that_others_hold_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = layers(monkeypatch, [make_policy("rocketkv", 24)], 300, torch.float32)
    assert one.ragged is not None
    held, was = one.ragged.kv.lengths, one.ragged.kv.lengths.clone()
    for seed in range(4):
        step(one, seed, torch.float32, 1)
    assert torch.equal(held, was) and int((one.ragged.kv.lengths - was).min()) == 4


@pytest.mark.parametrize("steps", [0, 1])  # the first step is the append op's, the next one the whole step's
def test_a_token_of_another_dtype_is_refused(steps: int) -> None:
    torch.manual_seed(0)
    q, kv = torch.randn(1, GROUPS, HEADS, 300, DIM).bfloat16(), torch.randn(1, GROUPS, 300, DIM).bfloat16()
    layer = prompt_of([make_policy("rocketkv", 24)], q, kv, kv)
    for seed in range(steps):
        step(layer, seed, torch.bfloat16, 1)
    untouched = copy.deepcopy(layer)
    with pytest.raises(BackendError, match=r"a token of float32 for a cache of bfloat16.*one dtype"):
        step(layer, 9, torch.float32, 1)
    for seed in range(10, 90):  # nothing was lost: right tokens go on as if it had not come, past the next events
        assert torch.equal(step(layer, seed, torch.bfloat16, 1), step(untouched, seed, torch.bfloat16, 1))
    (mine, my_facts), (others, other_facts) = layer_state(layer), layer_state(untouched)
    assert my_facts == other_facts and all(torch.equal(mine[name], others[name]) for name in others)


def test_steps_do_not_depend_on_the_default_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    one, parts = layers(monkeypatch, [make_policy("rocketkv", 24)], 300, torch.float32)
    expected = [step(one, seed, torch.float32, 1) for seed in range(3)]
    usual = torch.get_default_dtype()
    made = [torch.Generator().manual_seed(seed) for seed in range(3)]
    tokens = [token_of(g, torch.float32, 1) for g in made]
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = [decode_attend(*token, parts, scaling=0.3, dense=never) for token in tokens]
    finally:
        torch.set_default_dtype(usual)
    assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize("backend", ["reference"])
def test_other_backends_step_in_parts(backend: str) -> None:
    policy = make_policy("rocketkv", 24)
    torch.manual_seed(0)
    q, kv = torch.randn(1, GROUPS, HEADS, 300, DIM), torch.randn(1, GROUPS, 300, DIM)
    layer = prompt_of([policy], q, kv, kv, backend=backend)
    assert isinstance(layer.ragged, RaggedLayer)
    step(layer, 0, torch.float32, 1)
    assert layer.ragged.whole_step(q[:, :, :, :1], kv[:, :, :1], kv[:, :, :1], 0.3) is None
