"""The decode step of fixed shapes: equal to the ordinary one token by token, and blind to lengths in Python."""

from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rocketkv.attend import read
from rocketkv.cache.positions import padded_positions
from rocketkv.cache.ragged import READ_ALL, RaggedLayer, RowRule
from rocketkv.cache.static import Capture, CapturedStep, StaticStep
from rocketkv.cache.store import choose, pack
from rocketkv.ops.errors import BackendError
from rocketkv.ops.ragged import padded
from rocketkv.policies.hsa import HybridTopK
from rocketkv.policies.quest import QuestPages
from rocketkv.policies.sparq import SparQ
from support.triton_device import DEVICE

triton = pytest.importorskip("triton")

HEADS, GROUP, DIM, VALUES, SCALING = 2, 3, 6, 5, 0.4
HYBRID, LOCAL = HybridTopK(), HybridTopK(sink_tokens=1, local_tokens=3)
CASES = {
    "one_group": [RowRule(HYBRID, 16, 60)],
    "two_groups": [RowRule(LOCAL, 17, 60), RowRule(READ_ALL, 16), RowRule(LOCAL, 24, 70)],
    "other_shares": [RowRule(HybridTopK(estimate_share=0.25), 17, 60), RowRule(HybridTopK(estimate_share=0.7), 24, 70)],
    "no_pages": [RowRule(SparQ(), 16, 60)],
    "relays": [RowRule(HYBRID, 16, 29)],
    "passes_its_budget": [RowRule(HYBRID, 59), RowRule(HYBRID, 40)],
}
LAYOUTS = {"relays": 2, "passes_its_budget": 2}
"""Page layouts in seven tokens that last long enough to be captured, where it is not one."""


def layer_of(rules: list[RowRule], *, subset: bool, backend: str, tokens: int = 55) -> RaggedLayer:
    """A layer of up to `tokens` tokens per segment, whose slack holds NaN; with `subset` half of them may be chosen."""
    generator = torch.Generator().manual_seed(3)
    shape = len(rules), HEADS, tokens
    keys, values = (torch.randn(*shape, size, generator=generator) for size in (DIM, VALUES))
    dropped = torch.randint(0, 4, shape[:2], generator=generator)
    dropped[:, 0] = 0
    keep = torch.arange(tokens) >= dropped[..., None]
    positions = torch.arange(tokens).expand(shape)
    kv = pack(*(x.to(DEVICE) for x in (keys, values, keep, positions)))
    slack = torch.ones(kv.keys.shape[0], dtype=torch.bool, device=DEVICE)
    for start, length in zip(kv.starts.flatten().tolist(), kv.lengths.flatten().tolist(), strict=True):
        slack[start : start + length] = False
    kv.keys[slack], kv.values[slack] = torch.nan, torch.nan
    chosen = keep & (torch.arange(tokens) % 2 == 0)
    candidates = choose(chosen.to(DEVICE), keep.to(DEVICE)) if subset else None
    return RaggedLayer(kv, rules, candidates=candidates, backend=backend)


def held(layer: RaggedLayer) -> tuple[torch.Tensor, ...]:
    """Keys, values, positions and the mask of what is stored."""
    return *padded(layer.kv), padded_positions(layer.kv)[0]


def ordinary(layer: RaggedLayer, q: torch.Tensor, *token: torch.Tensor) -> torch.Tensor:
    """Append and read as `decode_attend` does."""
    layer.append(*token)
    out = q.new_empty(*q.shape[:-1], VALUES)
    for group in layer.groups:
        step = layer.step(group, SCALING)
        mine = group.pick(q)
        out[slice(None) if group.rows is None else group.rows] = read(
            group, mine, step, group.selector.select(mine, step)
        )
    return out


def token_of(rows: int, seed: int, tokens: int) -> tuple[torch.Tensor, ...]:
    """A query, a key, a value and the length of each row with it."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (HEADS, GROUP, DIM), (HEADS, DIM), (HEADS, VALUES)
    parts = [torch.randn(rows, *size, generator=generator) for size in sizes]
    return tuple(x.to(DEVICE) for x in (*parts, torch.full((rows,), tokens)))


def graphs_of(layer: RaggedLayer) -> Capture | None:
    """A graph's stand-in where there is no GPU: the same work at each replay, on the memory it was captured with."""

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        memory = [tensor.data_ptr() for tensor in layer.tensors()]

        def replay() -> None:
            assert memory == [tensor.data_ptr() for tensor in layer.tensors()]
            work()
            assert memory == [tensor.data_ptr() for tensor in layer.tensors()]

        return replay

    return capture if DEVICE == "cpu" else None


@pytest.mark.parametrize(("case", "subset"), [*((case, False) for case in CASES), ("two_groups", True)])
def test_many_steps_equal_the_ordinary_path(case: str, subset: bool) -> None:
    rules = CASES[case]
    usual, fixed = (layer_of(rules, subset=subset, backend=backend) for backend in ("reference", "triton"))
    step = CapturedStep(fixed, SCALING, graphs_of(fixed))
    for i in range(7):
        token = token_of(len(rules), i, 56 + i)
        torch.testing.assert_close(step(*token), ordinary(usual, *token), rtol=1e-5, atol=1e-5)
    assert fixed.layouts == usual.layouts
    assert step.captures == LAYOUTS.get(case, 1)
    assert torch.equal(fixed.lengths, usual.lengths)
    for found, expected in zip(held(fixed), held(usual), strict=True):
        assert torch.equal(found, expected)


def test_an_ordinary_token_in_between_is_noticed() -> None:
    usual, fixed = (layer_of(CASES["one_group"], subset=False, backend=name) for name in ("reference", "triton"))
    step = CapturedStep(fixed, SCALING, graphs_of(fixed))
    for i in range(7):
        token = token_of(1, i, 56 + i)
        found = ordinary(fixed, *token) if i == 3 else step(*token)
        torch.testing.assert_close(found, ordinary(usual, *token), rtol=1e-5, atol=1e-5)
    assert step.captures == 2


class Log(TorchDispatchMode):
    """What Python asked PyTorch for: every operation with its plain arguments and the shapes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple] = []

    def note(self, name: str, *given: object) -> None:
        plain = tuple((tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else repr(x) for x in given)
        self.entries.append((name, *plain))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        self.note(str(function), *(x for x in flat if not isinstance(x, torch.UntypedStorage)))
        return function(*args, **(kwargs or {}))


@pytest.mark.skipif(DEVICE != "cpu", reason="reads the interpreter's launches")
@pytest.mark.parametrize("subset", [False, True])
def test_no_python_value_depends_on_a_length(subset: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(CASES["two_groups"], subset=subset, backend="triton")
    step, token = StaticStep(layer, SCALING), token_of(3, 0, 56)
    begun = (layer.kv.lengths.clone(), layer.lengths.clone())
    log, interpreted = Log(), type(triton.jit(layer_of))
    run = interpreted.run

    def noted(self, *args, grid, **named):
        log.note(self.__name__, grid, *args, *named.items())
        return run(self, *args, grid=grid, **named)

    monkeypatch.setattr(interpreted, "run", noted)
    monkeypatch.setattr(torch.Tensor, "tolist", lambda _: pytest.fail("asked the device for values"))
    seen = []
    for shorter in (0, 3, 23):  # the last puts segments below their budgets
        layer.kv.lengths.copy_(begun[0] - shorter)
        layer.lengths.copy_(begun[1] - shorter)
        log.entries = []
        with log:
            step.append(*token[1:])
            out = step.read(token[0])
        assert bool(out.isfinite().all())
        seen.append(log.entries)
    assert len(seen[0]) > 50
    assert seen[0] == seen[1] == seen[2]
    assert not [entry for entry in seen[0] if "_local_scalar_dense" in entry[0] or "nonzero" in entry[0]]


def test_selectors_without_such_a_step_say_so() -> None:
    layer = layer_of([RowRule(QuestPages(), 16, 60)], subset=False, backend="reference")
    with pytest.raises(BackendError, match="QuestPages has no step of fixed shapes: decode without a CUDA graph"):
        StaticStep(layer, SCALING)
