"""CPU kernels beside their references: errors against float64, lengths of several blocks, refusals, and upkeep."""

import math
import os
import subprocess
import sys

import pytest
import torch

from rocketkv.ops.dense_attend.reference import as_store
from rocketkv.ops.dispatch import op
from rocketkv.ops.errors import BackendError
from rocketkv.types import Candidates, PageBounds, RaggedKV
from support.ragged import ragged_kv, slots_of

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [[1, 700], [1300, 0], [29, 4999]]
PAGES = [1, 3, 2]
"""Several blocks of tokens (512) and of pages (2,048), one token, and none."""


def double(kv: RaggedKV) -> RaggedKV:
    return RaggedKV(kv.keys.double(), kv.values.double(), kv.starts, kv.lengths, kv.capacities)


def built(kv: RaggedKV, pages: list[int], backend: str = "cpu") -> PageBounds:
    sizes = torch.tensor(pages)
    return op("page_bounds", "build_page_bounds", backend)(kv.keys, slots_of(kv), kv.lengths, sizes, kv.capacities)


def assert_no_worse(found: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor) -> None:
    """An error of at most twice the reference's own, both against float64; a few eps where the reference is exact."""
    real = exact.isfinite()
    assert torch.equal(real, found.isfinite()) and found.dtype == reference.dtype
    scale = exact[real].abs().max()
    errors = [float((x[real].double() - exact[real]).abs().max()) for x in (found, reference)]
    assert errors[0] <= 2 * errors[1] + 4 * torch.finfo(found.dtype).eps * float(scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 7])
def test_errors_are_at_most_twice_the_references(group: int, dtype: torch.dtype) -> None:
    kv = ragged_kv(LENGTHS, 24, 20, dtype)
    q = torch.randn(3, 2, group, 24).to(dtype)
    wide, wide_q = double(kv), q.double()
    counts = kv.lengths.clamp(max=1100)
    slots = torch.zeros(3, 2, 1100, dtype=torch.long)
    for place in [(b, g) for b in range(3) for g in range(2)]:
        order = torch.randperm(int(kv.lengths[place]))[: int(counts[place])].sort().values
        slots[place][: len(order)] = order
    exact = op("attend", "attend", "reference")(wide_q, wide, slots, counts, scaling=0.4)
    pair = [op("attend", "attend", name)(q, kv, slots, counts, scaling=0.4) for name in ("cpu", "reference")]
    assert_no_worse(*pair, exact)
    exact = op("dense_attend", "dense_attend", "reference")(wide_q, wide, scaling=0.4)
    pair = [op("dense_attend", "dense_attend", name)(q, kv, scaling=0.4) for name in ("cpu", "reference")]
    assert_no_worse(*pair, exact)
    bounds, wide_bounds, rank = (
        built(kv, PAGES),
        built(wide, PAGES, "reference"),
        torch.tensor([[1, 9], [24, 5], [3, 8]]),
    )
    names = ("cpu", "reference", "reference")
    found = [op("page_scores", "page_scores", name)(x, y, kv.lengths, rank=rank, scaling=0.4)
             for name, x, y in zip(names, (q, q, wide_q), (bounds, bounds, wide_bounds), strict=True)]  # fmt: skip
    assert_no_worse(*found)
    found = [op("quest_scores", "quest_scores", name)(x, y, kv.lengths, scaling=0.4)
             for name, x, y in zip(names, (q, q, wide_q), (bounds, bounds, wide_bounds), strict=True)]  # fmt: skip
    assert found[0][1] == found[1][1]
    assert_no_worse(*(scores for scores, _ in found))


@pytest.mark.parametrize("dtype", DTYPES)
def test_window_scores_are_no_worse(dtype: torch.dtype) -> None:
    queries, keys = torch.randn(2, 2, 3, 8, 24).to(dtype), torch.randn(2, 2, 2100, 24).to(dtype)
    counts, key_counts = torch.tensor([8, 5]), torch.tensor([[2100, 2100], [77, 1500]])
    found = [
        op("window_scores", "window_scores", name)(x, counts, y, key_counts, scaling=0.4)
        for name, x, y in (
            ("cpu", queries, keys),
            ("reference", queries, keys),
            ("reference", queries.double(), keys.double()),
        )
    ]
    assert_no_worse(*found)


def test_page_one_holds_keys_once_for_quest() -> None:
    kv = ragged_kv([[9, 40]], 8)
    q, bounds = torch.randn(1, 2, 3, 8), built(kv, [1])
    found, reference = (
        op("quest_scores", "quest_scores", name)(q, bounds, kv.lengths, scaling=0.4) for name in ("cpu", "reference")
    )
    torch.testing.assert_close(found[0], reference[0])
    assert found[1] == reference[1] == 8 * 49


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("share", [0.5, 0.25, 0.9])
def test_the_whole_step_gives_the_bits_of_its_ops(share: float, mapped: bool, dtype: torch.dtype) -> None:
    kv = ragged_kv([[40, 3001], [1300, 64], [4999, 300]], 16, dtype=dtype)
    candidates, lengths = None, kv.lengths
    slots = slots_of(kv)
    if mapped:  # every second token may be read
        lengths = kv.lengths // 2
        starts = (lengths.view(-1).cumsum(0) - lengths.view(-1)).view(3, 2)
        every = torch.cat([torch.arange(int(n)) * 2 for n in lengths.view(-1)]).int()
        candidates = Candidates(every, starts, lengths, lengths)
        slots = slots[..., ::2]
    sizes, budget = torch.tensor([1, 3, 2]), torch.tensor([64, 1200, 256])
    bounds = op("page_bounds", "build_page_bounds", "cpu")(kv.keys, slots, lengths, sizes, lengths)
    q = torch.randn(3, 2, 4, 16).to(dtype)
    given = (q, kv, candidates, bounds, lengths, budget)
    options = {"scaling": 0.3, "local_tokens": 3} | ({} if share == 0.5 else {"estimate_share": share})
    out, elements = op("hybrid_attend", "hybrid_attend", "cpu")(*given, **options)
    scaled, read = {
        0.5: ([64, 1200, 256], [32, 600, 128]),
        0.25: ([32, 600, 128], [48, 900, 192]),
        0.9: ([115, 2160, 460], [6, 120, 25]),
    }[share]
    rank = (torch.tensor(scaled)[:, None] * sizes[:, None] * 16 // lengths).clamp(1, 16)
    counts = torch.where(lengths <= budget[:, None], lengths, torch.tensor(read)[:, None].clamp(max=lengths))
    scores = op("page_scores", "page_scores", "cpu")(q, bounds, lengths, rank=rank, scaling=0.3)
    tokens = op("topk_tokens", "topk_tokens", "cpu")(scores, lengths, sizes, counts, local_tokens=3)
    assert torch.equal(
        tokens, op("topk_tokens", "topk_tokens", "reference")(scores, lengths, sizes, counts, local_tokens=3)
    )
    assert torch.equal(out, op("attend", "attend", "cpu")(q, kv, tokens * 2 if mapped else tokens, counts, scaling=0.3))
    assert elements == op("hybrid_attend", "hybrid_attend", "reference")(*given, **options)[1]


def test_a_row_alone_and_any_number_of_threads_give_the_same_bits() -> None:
    kv = ragged_kv([[5000, 3000], [2500, 4100]], 16)
    q, budget = torch.randn(2, 2, 3, 16), torch.tensor([4096, 2048])
    bounds = built(kv, [2, 1])
    hybrid = op("hybrid_attend", "hybrid_attend", "cpu")
    together, _ = hybrid(q, kv, None, bounds, kv.lengths, budget, scaling=0.3)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for b, g in ((0, 0), (1, 1), (1, 0)):
            part = slice(b, b + 1), slice(g, g + 1)
            one = RaggedKV(kv.keys, kv.values, *(x[part] for x in (kv.starts, kv.lengths, kv.capacities)))
            pages = PageBounds(
                bounds.data, bounds.upper[part], bounds.lower[part], bounds.pitch[part], bounds.page_tokens[part[0]]
            )
            alone, _ = hybrid(q[part], one, None, pages, one.lengths, budget[part[0]], scaling=0.3)
            assert torch.equal(alone, together[part])
            dense = op("dense_attend", "dense_attend", "cpu")
            assert torch.equal(dense(q[part], one, scaling=0.3), dense(q, kv, scaling=0.3)[part])


def test_dense_attention_over_padded_columns() -> None:
    q, keys, values = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 19, 8), torch.randn(2, 2, 19, 6)
    expected = torch.nn.functional.scaled_dot_product_attention(q, keys, values, scale=0.3)
    torch.testing.assert_close(
        op("dense_attend", "dense_attend", "cpu")(q, as_store(keys, values), scaling=0.3), expected
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_finite_number_is_widened_exactly(dtype: torch.dtype) -> None:
    every = (
        torch.full((65536,), 0).float() if dtype == torch.float32 else torch.arange(65536).to(torch.int16).view(dtype)
    )
    every = every[every.isfinite()][:, None]
    kv = RaggedKV(every, every, torch.zeros(1, 1).long(), torch.tensor([[len(every)]]), torch.tensor([[len(every)]]))
    slots = torch.randperm(len(every))[:600][:, None, None]
    store = RaggedKV(every, every, torch.zeros(600, 1).long(), kv.lengths.expand(600, 1), kv.lengths.expand(600, 1))
    out = op("attend", "attend", "cpu")(torch.zeros(600, 1, 1, 1), store, slots, torch.ones(600, 1).long(), scaling=1.0)
    assert torch.equal(out.flatten(), every[slots.flatten(), 0].float())


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_append_writes_behind_the_last_token(backend: str) -> None:
    kv = ragged_kv([[4, 0], [7, 2]], 8, 6)
    before, lengths = kv.keys.clone(), kv.lengths.clone()
    keys, values = torch.randn(2, 2, 8), torch.randn(2, 2, 6)
    op("append_token", "append_token", backend)(keys, values, kv)
    assert torch.equal(kv.lengths, lengths + 1)
    slot = (kv.starts + lengths).flatten()
    assert torch.equal(kv.keys[slot], keys.flatten(0, 1)) and torch.equal(kv.values[slot], values.flatten(0, 1))
    before[slot] = keys.flatten(0, 1)
    torch.testing.assert_close(kv.keys, before, equal_nan=True)


def test_infinities_that_are_not_read_stay_out() -> None:
    kv = ragged_kv([[900]], 8)
    start = int(kv.starts)
    kv.keys[start + 1 : start + 900 : 2] = math.inf
    kv.values[start + 1 : start + 900 : 2] = -math.inf
    slots = torch.arange(0, 900, 2)[None, None]
    out = op("attend", "attend", "cpu")(torch.randn(1, 1, 4, 8), kv, slots, torch.tensor([[450]]), scaling=0.5)
    assert bool(out.isfinite().all())


def test_float64_and_other_devices_are_refused_by_name() -> None:
    kv = ragged_kv([[5]], 4, dtype=torch.float64)
    slots, counts = torch.arange(5)[None, None], torch.tensor([[5]])
    q = torch.randn(1, 1, 2, 4, dtype=torch.float64)
    with pytest.raises(BackendError, match=r'attend/cpu reads float32.*got float64; use backend="reference"'):
        op("attend", "attend", "cpu")(q, kv, slots, counts, scaling=1.0)
    with pytest.raises(BackendError, match=r'attend/cpu needs a CPU tensor, got meta; use backend="reference"'):
        op("attend", "attend", "cpu")(q.float().to("meta"), kv, slots, counts, scaling=1.0)
    reference = op("attend", "attend", "reference")(q, kv, slots, counts, scaling=1.0)
    assert torch.equal(op("attend", "attend")(q, kv, slots, counts, scaling=1.0), reference)


def test_compilation_is_announced_once_and_threads_stay_pytorchs(tmp_path) -> None:
    code = (
        "import torch\ntorch.set_num_threads(1)\nfrom rocketkv.ops.dispatch import op\n"
        "scores, one = torch.rand(1, 1, 4), torch.ones(1, 1).long()\n"
        "tokens = op('topk_tokens', 'topk_tokens', 'cpu')(scores, 4 * one, one[0], 2 * one)\n"
        "print(tokens.shape[2], torch.get_num_threads())"
    )
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                              env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)})  # fmt: skip
        assert done.stdout.strip() == "2 1"
        said.append(done.stderr.count("compiling CPU kernels"))
    assert said == [1, 0]
