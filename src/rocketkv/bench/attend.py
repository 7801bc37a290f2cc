"""One attention layer, one decode step: PyTorch, our dense kernel, RocketKV on what it keeps, baseline selectors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from rocketkv.attend import decode_attend, read
from rocketkv.bench.filled import Shape, kept_layer, random_columns
from rocketkv.bench.timing import Row, copies_needed
from rocketkv.cache.ragged import RaggedLayer, RowRule
from rocketkv.ops.dispatch import op
from rocketkv.ops.errors import BackendError
from rocketkv.policies.base import Policy
from rocketkv.policies.registry import make_policy
from rocketkv.types import Float, RaggedKV, Tensor

SELECTORS = ("hsa", "quest", "sparq", "loki", "exact-topk")


@dataclass(frozen=True)
class AttendCase:
    """A layer of `shape` at one context and dtype, with the budgets to compare."""

    shape: Shape
    context_tokens: int
    dtype: torch.dtype
    budgets: Sequence[int]
    cold_bytes: float
    seed: int
    backend: str = "auto"

    @property
    def group(self) -> str:
        """What rows of this case are compared within."""
        shape = self.shape
        heads = f"{shape.kv_heads} x {shape.group_size} x {shape.head_dim}"
        return f"{heads}, {str(self.dtype)[6:]}, {self.context_tokens:,} tokens"

    def settings(self, **more: Any) -> dict[str, Any]:
        """The case as plain values, for records."""
        shape = self.shape
        return {
            "shape": [shape.kv_heads, shape.group_size, shape.head_dim],
            "context_tokens": self.context_tokens,
            "dtype": str(self.dtype)[6:],
            "backend": self.backend,
            "cold_bytes": self.cold_bytes,
        } | more


def rows_of(case: AttendCase, selectors: Sequence[str] = SELECTORS) -> list[Row]:
    """All rows of a case. They share the full keys and values; bounds and kept tokens are each row's own."""
    generator = torch.Generator().manual_seed(case.seed)
    pair_bytes = case.shape.pair_bytes(case.dtype)
    full = [
        random_columns(case.shape, case.context_tokens, case.dtype, generator)
        for _ in range(copies_needed(pair_bytes * case.context_tokens, case.cold_bytes))
    ]
    q = torch.randn(1, case.shape.kv_heads, case.shape.group_size, case.shape.head_dim, generator=generator)
    q = q.to(case.dtype)
    rows = _dense_rows(case, q, full)
    for budget in case.budgets:
        if budget >= case.context_tokens:
            rows.append(_skipped(case, f"rocketkv {budget}", "the budget holds the whole context: the plan is dense"))
            continue
        rows += _rocketkv_rows(case, q, budget, generator)
        rows += [_selector_row(case, q, budget, name, full, generator) for name in selectors]
    return rows


def _dense_rows(case: AttendCase, q: Tensor, full: list[tuple[Tensor, Tensor]]) -> list[Row]:
    scaling, heads = case.shape.head_dim**-0.5, case.shape.kv_heads * case.shape.group_size
    apart = q.view(1, heads, 1, -1)
    bytes_read = case.shape.pair_bytes(case.dtype) * case.context_tokens
    ways: dict[str, Callable[..., Any]] = {
        "PyTorch SDPA, enable_gqa": lambda k, v: scaled_dot_product_attention(apart, k, v, enable_gqa=True),
        "PyTorch SDPA, group as query rows": lambda k, v: scaled_dot_product_attention(q, k, v),
    }
    rows = []
    for name, way in ways.items():
        calls = [partial(way, *kv) for kv in full]
        rows.append(Row(name, case.group, calls, bytes_read, baseline=True, settings=case.settings()))
    try:
        dense = op("dense_attend", "dense_attend", case.backend)
    except (BackendError, ModuleNotFoundError) as error:
        return [*rows, _skipped(case, "dense kernel", str(error))]
    calls = [partial(dense, q, store(*kv), scaling=scaling) for kv in full]
    return [*rows, Row("dense kernel", case.group, calls, bytes_read, settings=case.settings())]


def _rocketkv_rows(case: AttendCase, q: Tensor, budget: int, generator: torch.Generator) -> list[Row]:
    """Selection and attention alone, and the whole step: the new token taken in and its page's bounds updated too."""
    policy = make_policy("rocketkv", budget)
    named = case.shape.pair_bytes(case.dtype) * budget
    first = kept_layer(policy, case.shape, case.context_tokens, case.dtype, generator, case.backend)
    states = [first, *(copy.deepcopy(first) for _ in range(copies_needed(named, case.cold_bytes) - 1))]
    scaling, query = case.shape.head_dim**-0.5, q[:, :, :, None]
    key, value = random_columns(case.shape, 1, case.dtype, generator)
    plan = first.plans[0]
    settings = case.settings(policy=policy.describe(), kept_tokens=plan.kept_tokens, page_tokens=plan.page_tokens,
                             rank=plan.rank, shown=f"kept {plan.kept_tokens:,}, page {plan.page_tokens}")  # fmt: skip

    def whole_step(state: Any) -> Tensor:
        return decode_attend(query, key, value, state, scaling=scaling, dense=_no_dense)

    alone = [partial(select_and_read, state.ragged, q, scaling) for state in states if state.ragged is not None]
    steps = [partial(whole_step, state) for state in states]
    return [
        Row(f"rocketkv {budget}, selection and attention", case.group, alone, named, settings=settings),
        Row(f"rocketkv {budget}, whole step with append", case.group, steps, named, settings=settings),
    ]


def _selector_row(
    case: AttendCase, q: Tensor, budget: int, name: str, full: list[tuple[Tensor, Tensor]], generator: torch.Generator
) -> Row:
    policy = _selecting(name, budget, case.shape, generator)
    rule = RowRule(policy.slots[1], budget, case.context_tokens)
    layers = [RaggedLayer(store(*kv), [rule], backend=case.backend) for kv in full]
    scaling = case.shape.head_dim**-0.5
    calls = [partial(select_and_read, layer, q, scaling) for layer in layers]
    named = case.shape.pair_bytes(case.dtype) * budget
    settings = case.settings(policy=policy.describe())
    return Row(f"{name} {budget} on the full length", case.group, calls, named, settings=settings)


def _selecting(name: str, budget: int, shape: Shape, generator: torch.Generator) -> Policy:
    if name != "loki":
        return make_policy(name, budget)
    square = torch.randn(1, shape.kv_heads, shape.head_dim, shape.head_dim, generator=generator)
    return make_policy(name, budget, bases=torch.linalg.qr(square).Q)


def select_and_read(layer: RaggedLayer, q: Float[Tensor, "B G R D"], scaling: float) -> Tensor:
    """Selection and attention of a decode step through the product's own path, without taking a token in."""
    (group,) = layer.groups
    step = layer.step(group, scaling)
    options = group.selector.hybrid_options
    if options is not None:
        hybrid = op("hybrid_attend", "hybrid_attend", step.backend)
        out: Tensor = hybrid(
            q, step.kv, step.candidates, step.bounds, step.lengths, step.budget_tokens, scaling=scaling, **options
        )[0]
        return out
    return read(group, q, step, group.selector.select(q, step))


def store(keys: Float[Tensor, "B G C D"], values: Float[Tensor, "B G C Dv"]) -> RaggedKV:
    """Contiguous columns seen as a store, without a copy."""
    batch, heads, columns = keys.shape[:3]
    starts = torch.arange(batch * heads).view(batch, heads) * columns
    lengths = torch.full_like(starts, columns)
    return RaggedKV(keys.view(-1, keys.shape[-1]), values.view(-1, values.shape[-1]), starts, lengths, lengths.clone())


def _skipped(case: AttendCase, name: str, why: str) -> Row:
    return Row(name, case.group, [], settings=case.settings(), skipped=why)


def _no_dense(*_: Any) -> Tensor:
    raise AssertionError("a step on a selecting layer is never dense")
