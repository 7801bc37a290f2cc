"""GPU kernels against float64: an error at most twice the reference's, over several blocks and splits."""

import dataclasses

import numpy as np
import pytest
import torch

from rocketkv.ops.dispatch import op
from rocketkv.ops.page_bounds.reference import build_page_bounds
from rocketkv.types import PageBounds, RaggedKV
from support import spec
from support.ragged import ragged_kv, segment, slots_of
from support.triton_device import DEVICE, there, within_twice

pytest.importorskip("triton")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [[1, 210], [0, 97]]


def bounds_over(kv: RaggedKV, pages: list[int]) -> PageBounds:
    return build_page_bounds(kv.keys, slots_of(kv), kv.lengths, torch.tensor(pages), kv.capacities)


def widened(given):
    """The same numbers in float64."""
    if isinstance(given, torch.Tensor):
        return given.double() if given.is_floating_point() else given
    if dataclasses.is_dataclass(given):
        return dataclasses.replace(
            given, **{f.name: widened(getattr(given, f.name)) for f in dataclasses.fields(given)}
        )
    return given


def compare(folder: str, name: str, *args, **named) -> torch.Tensor:
    """Assert the rule for one call and return what the kernel gave."""
    first = lambda out: out[0] if isinstance(out, tuple) else out  # noqa: E731
    reference, kernel = op(folder, name, "reference"), op(folder, name, "triton")
    exact = first(reference(*(widened(x) for x in args), **named))
    found = first(kernel(*(there(x) for x in args), **{key: there(x) for key, x in named.items()}))
    usual = first(reference(*args, **named))
    assert found.dtype == usual.dtype and found.shape == usual.shape
    assert within_twice(found, usual, exact)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 3, 7])
def test_attention_over_slots_and_over_everything(dtype: torch.dtype, group: int) -> None:
    kv = ragged_kv(LENGTHS, 12, 20, dtype)
    q = torch.randn(2, 2, group, 12).to(dtype)
    counts = torch.tensor([[1, 150], [0, 97]])
    slots = torch.zeros(2, 2, 150, dtype=torch.long)
    for b, g in ((0, 0), (0, 1), (1, 1)):
        chosen = torch.randperm(LENGTHS[b][g])[: counts[b, g]].sort().values
        slots[b, g, : counts[b, g]] = chosen
    out = compare("attend", "attend", q, kv, slots, counts, scaling=0.3)
    assert bool((out[1, 0] == 0).all())
    compare("dense_attend", "dense_attend", q, kv, scaling=0.3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "pages"), [(1, [1, 1]), (3, [1, 5]), (7, [2, 300])])
def test_scores_of_pages(dtype: torch.dtype, group: int, pages: list[int]) -> None:
    kv = ragged_kv(LENGTHS, 20, dtype=dtype)
    bounds, q = bounds_over(kv, pages), torch.randn(2, 2, group, 20).to(dtype)
    compare("page_scores", "page_scores", q, bounds, kv.lengths, rank=torch.tensor([[20, 18], [1, 5]]), scaling=0.2)
    compare("quest_scores", "quest_scores", q, bounds, kv.lengths, scaling=0.2)


def test_quest_counts_what_the_reference_counts() -> None:
    kv = ragged_kv([[9, 14]], 6)
    given = torch.randn(1, 2, 3, 6), bounds_over(kv, [4]), kv.lengths
    found = op("quest_scores", "quest_scores", "triton")(*there(given), scaling=0.4)
    assert found[1] == op("quest_scores", "quest_scores", "reference")(*given, scaling=0.4)[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_window_scores_over_two_splits(dtype: torch.dtype) -> None:
    columns = 1040 if dtype == torch.bfloat16 else 70
    queries = torch.randn(2, 1, 3, 4, 8).to(dtype)
    keys = torch.randn(2, 1, columns, 8).to(dtype)
    counts = torch.tensor([[columns], [5]])
    compare("window_scores", "window_scores", queries, torch.tensor([4, 2]), keys, counts, scaling=0.4)


def test_window_scores_of_keys_that_are_a_view() -> None:
    keys = torch.randn(2, 9, 3, 8).transpose(1, 2)  # [B, G, C, D] as a model hands them over
    queries = torch.randn(2, 3, 2, 4, 8)
    counts = torch.full((2, 3), 9)
    compare("window_scores", "window_scores", queries, torch.tensor([4, 4]), keys, counts, scaling=0.4)


def test_tokens_over_several_blocks() -> None:
    scores = torch.rand(1, 2, 4200).round(decimals=3) - 0.5  # many ties
    lengths, counts, page = torch.tensor([[8400, 1500]]), torch.tensor([[700, 1500]]), torch.tensor([2])
    found = op("topk_tokens", "topk_tokens", "triton")(*there((scores, lengths, page, counts)))
    assert torch.equal(found.cpu(), op("topk_tokens", "topk_tokens", "reference")(scores, lengths, page, counts))


@pytest.mark.parametrize("share", [0.25, 0.7])
def test_another_share_for_the_estimate(share: float) -> None:
    kv = ragged_kv([[1, 150], [41, 60]], 8)
    q, budgets = torch.randn(2, 2, 3, 8), torch.tensor([24, 40])
    given = q, kv, None, bounds_over(kv, [3, 1]), kv.lengths, budgets
    out, elements = op("hybrid_attend", "hybrid_attend", "triton")(*there(given), scaling=0.35, estimate_share=share)
    expected, read = op("hybrid_attend", "hybrid_attend", "reference")(*given, scaling=0.35, estimate_share=share)
    torch.testing.assert_close(out.cpu(), expected)
    assert elements == read


@pytest.mark.parametrize("page", [1, 3])
def test_a_selection_by_the_kernels_own_scores(page: int) -> None:
    kv = ragged_kv([[1, 150], [41, 60]], 8, dtype=torch.bfloat16)
    q, budgets = torch.randn(2, 2, 3, 8).bfloat16(), torch.tensor([24, 40])
    bounds = bounds_over(kv, [page, page])
    rank = (budgets[:, None] * page * 8 // kv.lengths).clamp(1, 8)
    counts = torch.where(kv.lengths <= budgets[:, None], kv.lengths, budgets[:, None] // 2)
    scores = op("page_scores", "page_scores", "triton")(*there((q, bounds, kv.lengths)), rank=there(rank), scaling=0.35)
    tokens = op("topk_tokens", "topk_tokens", "triton")(scores, *there((kv.lengths, bounds.page_tokens, counts))).cpu()
    for b, g in np.ndindex(2, 2):
        keys, _ = segment(kv, b, g)
        exact = spec.token_scores(q[b, g].double().numpy(), keys, page, int(rank[b, g]), 0.35)
        count = int(counts[b, g])
        assert spec.right_choice(exact, tokens[b, g, :count].tolist(), count, 1e-4)
    given = q, kv, None, bounds, kv.lengths, budgets
    out, elements = op("hybrid_attend", "hybrid_attend", "triton")(*there(given), scaling=0.35)
    expected, read = op("hybrid_attend", "hybrid_attend", "reference")(*given, scaling=0.35)
    torch.testing.assert_close(out.cpu(), expected, atol=2e-2, rtol=0)
    assert elements == read


def test_appended_tokens() -> None:
    keys, values = torch.randn(2, 2, 6).half(), torch.randn(2, 2, 5).half()
    stores = [ragged_kv([[1, 4], [0, 3]], 6, 5, torch.float16) for _ in range(2)]
    op("append_token", "append_token", "reference")(keys, values, stores[0])
    stores[1] = there(stores[1])
    op("append_token", "append_token", "triton")(*there((keys, values)), stores[1])
    for name in ("keys", "values", "lengths"):
        torch.testing.assert_close(
            getattr(stores[1], name).cpu(), getattr(stores[0], name), rtol=0, atol=0, equal_nan=True
        )


def test_a_store_of_more_than_two_to_the_31_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":  # the interpreter copies memory back onto itself, and would touch all of it
        interpreter = pytest.importorskip("triton.runtime.interpreter")
        monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)
    small = ragged_kv([[40]], 16, dtype=torch.float16)
    first = 1 << 27
    try:
        flat = torch.empty(first + 64, 16, dtype=torch.float16, device=DEVICE)  # only touched pages take memory
    except RuntimeError:
        pytest.skip("no address space for a store this large")
    flat[first : first + 40] = there(small.keys[small.starts[0, 0] :][:40])
    lengths = torch.tensor([[40]])
    kv = RaggedKV(flat, flat, *there((torch.tensor([[first]]), lengths, lengths + 8)))
    q = torch.randn(1, 1, 2, 16).half()
    found = op("dense_attend", "dense_attend", "triton")(there(q), kv, scaling=0.2)
    near = RaggedKV(small.keys, small.keys, small.starts, lengths, lengths)
    expected = op("dense_attend", "dense_attend", "reference")(q, near, scaling=0.2)
    torch.testing.assert_close(found.cpu(), expected)
    build = op("page_bounds", "build_page_bounds", "triton")
    slots = torch.arange(40, device=DEVICE)[None, None] + first
    bounds = build(flat, slots, *there((lengths, torch.tensor([40]), lengths)))
    assert torch.equal(bounds.data[:16], flat[first : first + 40].amax(0))
