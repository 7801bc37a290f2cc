"""Integers are within half a scale of the weights, and every backend's product is the reference's."""

import pytest
import torch

from rocketkv.ops.dispatch import op
from rocketkv.ops.errors import BackendError
from rocketkv.ops.linear.cpu import FEW_ROWS
from rocketkv.ops.linear.reference import linear, quantise_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (3, 7), (64, 33), (131, 64), (300, 600), (5, 191)]
FEW = FEW_ROWS[torch.int8]
kernel = op("linear", "linear", "cpu")


def test_rows_by_hand() -> None:
    integers, scales = quantise_rows(torch.tensor([[127.0, -254.0, 1.0], [0.0, 0.0, 0.0]]))
    assert integers.tolist() == [[64, -127, 0], [0, 0, 0]]  # 63.5 rounds to the even 64, half a unit to 0
    assert scales.tolist() == [2.0, 0.0]
    x = torch.tensor([1.0, 1.0, 5.0])
    assert linear(x, integers, scales, torch.tensor([0.5, 7.0])).tolist() == [-125.5, 7.0]


def test_no_weight_is_off_by_more_than_half_a_scale() -> None:
    weights = torch.randn(50, 33) * torch.logspace(-6, 6, 50)[:, None]
    integers, scales = quantise_rows(weights)
    off = (integers.float() * scales[:, None] - weights).abs()
    assert bool((off <= 0.5001 * scales[:, None]).all())
    assert integers.dtype == torch.int8 and int(integers.min()) >= -127


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 4, 5, FEW, FEW + 1, 40])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("integers", [True, False])
def test_kernel_is_as_good_as_the_reference(
    outputs: int, inputs: int, rows: int, dtype: torch.dtype, integers: bool
) -> None:
    x, bias = torch.randn(rows, inputs).to(dtype), torch.randn(outputs).to(dtype)
    weights, scales = torch.randn(outputs, inputs).to(dtype), None
    exact = weights.double()
    if integers:
        weights, scales = quantise_rows(weights)
        exact = weights.double() * scales.double()[:, None]
    size = x.double().abs() @ exact.abs().T + bias.double().abs()
    exact = x.double() @ exact.T + bias.double()
    ours, reference = kernel(x, weights, scales, bias), linear(x, weights, scales, bias)
    assert ours.dtype == reference.dtype == dtype
    unit = torch.finfo(dtype).eps
    worst = [float(((out.double() - exact).abs() / size).max()) for out in (ours, reference)]
    assert worst[0] <= 2 * max(worst[1], unit / 2)


def test_leading_dimensions_and_no_bias() -> None:
    x = torch.randn(2, 3, 8)
    integers, scales = quantise_rows(torch.randn(5, 8))
    out = op("linear", "linear")(x, integers, scales)
    assert out.shape == (2, 3, 5)
    torch.testing.assert_close(out, linear(x, integers, scales))
    assert kernel(x[:0], integers, scales).shape == (0, 3, 5)
    assert kernel(x[:0], torch.randn(5, 8)).shape == (0, 3, 5)
    assert kernel(x[0, 0], integers, scales).shape == (5,)


def test_what_is_not_contiguous() -> None:
    x, weights = torch.randn(8, 2).bfloat16().T, torch.randn(8, 6).bfloat16().T
    torch.testing.assert_close(kernel(x, weights), linear(x, weights))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_stored_number_is_itself(dtype: torch.dtype) -> None:
    if dtype == torch.float32:
        weights = torch.tensor([0.0, 1e-44, 1e-38, 3e38, torch.inf, -torch.inf, torch.nan])
    else:
        weights = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)  # all there are
    out = kernel(torch.ones(1, 1), weights[:, None])  # whole vectors have their turn below
    assert torch.equal(out[0].nan_to_num(7.0), weights.float().nan_to_num(7.0))
    wide = torch.zeros(weights.numel(), 64, dtype=dtype)
    wide[:, 5] = weights
    out = kernel(torch.ones(1, 64), wide)
    assert torch.equal(out[0].nan_to_num(7.0), weights.float().nan_to_num(7.0))


@pytest.mark.parametrize("inputs", [3, 130])
def test_infinities_and_nan_keep_their_meaning(inputs: int) -> None:
    x = torch.ones(1, inputs)
    for place in (0, inputs - 1):
        for value in (torch.inf, -torch.inf, torch.nan):
            x[0, place] = value
            for weights in (torch.ones(2, inputs).bfloat16(), torch.ones(2, inputs).half()):
                torch.testing.assert_close(kernel(x, weights), linear(x, weights), equal_nan=True)
            integers, scales = quantise_rows(torch.tensor([[1.0], [-1.0]]).expand(2, inputs))
            torch.testing.assert_close(kernel(x, integers, scales), linear(x, integers, scales), equal_nan=True)
        x[0, place] = 1.0


def test_a_row_of_a_few_has_the_bits_it_has_alone() -> None:
    x = torch.randn(FEW, 200)
    integers, scales = quantise_rows(torch.randn(70, 200))
    alone = torch.cat([kernel(row[None], integers, scales) for row in x])
    assert torch.equal(kernel(x, integers, scales), alone)
    weights, few = torch.randn(70, 200).bfloat16(), x[: FEW_ROWS[torch.bfloat16]].bfloat16()
    assert torch.equal(kernel(few, weights), torch.cat([kernel(row[None], weights) for row in few]))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_on_any_number_of_threads(threads: int) -> None:
    x = torch.randn(1, 512)
    integers, scales = quantise_rows(torch.randn(301, 512))  # enough weights for a second thread
    expected = kernel(x, integers, scales)
    torch.set_num_threads(threads)
    assert torch.equal(kernel(x, integers, scales), expected)


def test_refusals() -> None:
    with pytest.raises(BackendError, match="reads float32, bfloat16 and float16, got float64"):
        kernel(torch.ones(1, 2).double(), torch.ones(3, 2).double())
    with pytest.raises(BackendError, match="needs a CPU tensor"):
        kernel(torch.ones(1, 2, device="meta"), torch.ones(3, 2, device="meta"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_are_rounded_to_the_nearest(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 0.0, -0.0, 3e38, -3e38, 1e-7, 6e4, 7e4, torch.inf, -torch.inf, torch.nan, 1 + 2**-9])
    ties = 1 + torch.arange(64) * 2.0**-12  # halfway between numbers of either dtype, among others
    scales = torch.cat([values, ties, -ties, torch.randn(500)])
    out = kernel(torch.ones(1, 1, dtype=dtype), torch.ones(scales.numel(), 1, dtype=torch.int8), scales)
    torch.testing.assert_close(out[0], scales.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_of_another_dtype(dtype: torch.dtype) -> None:
    x, weights, bias = torch.ones(1, 2), torch.ones(2, 2).bfloat16(), torch.tensor([0.5, -2.0], dtype=dtype)
    assert kernel(x, weights, bias=bias).tolist() == [[2.5, 0.0]]
