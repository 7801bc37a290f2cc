"""Integers are within half a scale of the weights, and every backend's product is the reference's."""

import pytest
import torch

from rocketkv.ops.dispatch import op
from rocketkv.ops.int8_linear.cpu import FEW_ROWS
from rocketkv.ops.int8_linear.reference import int8_linear, quantise_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def test_rows_by_hand() -> None:
    integers, scales = quantise_rows(torch.tensor([[127.0, -254.0, 1.0], [0.0, 0.0, 0.0]]))
    assert integers.tolist() == [[64, -127, 0], [0, 0, 0]]  # 63.5 rounds to the even 64, half a unit to 0
    assert scales.tolist() == [2.0, 0.0]
    x = torch.tensor([1.0, 1.0, 5.0])
    assert int8_linear(x, integers, scales, torch.tensor([0.5, 7.0])).tolist() == [-125.5, 7.0]


def test_no_weight_is_off_by_more_than_half_a_scale() -> None:
    weights = torch.randn(50, 33) * torch.logspace(-6, 6, 50)[:, None]
    integers, scales = quantise_rows(weights)
    off = (integers.float() * scales[:, None] - weights).abs()
    assert bool((off <= 0.5001 * scales[:, None]).all())
    assert integers.dtype == torch.int8 and int(integers.min()) >= -127


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, FEW_ROWS + 1, 40])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (3, 7), (64, 33), (131, 64), (300, 600)])
def test_kernel_is_as_good_as_the_reference(outputs: int, inputs: int, rows: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, inputs).to(dtype)
    integers, scales = quantise_rows(torch.randn(outputs, inputs))
    bias = torch.randn(outputs).to(dtype)
    exact = x.double() @ (integers.double() * scales.double()[:, None]).T + bias.double()
    size = x.double().abs() @ (integers.double() * scales.double()[:, None]).abs().T + bias.double().abs()
    kernel = op("int8_linear", "int8_linear", "cpu")(x, integers, scales, bias)
    reference = int8_linear(x, integers, scales, bias)
    assert kernel.dtype == reference.dtype == dtype
    unit = torch.finfo(dtype).eps
    worst = [float(((out.double() - exact).abs() / size).max()) for out in (kernel, reference)]
    assert worst[0] <= 2 * max(worst[1], unit / 2)


def test_leading_dimensions_and_no_bias() -> None:
    x = torch.randn(2, 3, 8)
    integers, scales = quantise_rows(torch.randn(5, 8))
    out = op("int8_linear", "int8_linear")(x, integers, scales)
    assert out.shape == (2, 3, 5)
    torch.testing.assert_close(out, int8_linear(x, integers, scales))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_on_any_number_of_threads(threads: int) -> None:
    x = torch.randn(1, 512)
    integers, scales = quantise_rows(torch.randn(300, 512))  # enough weights for a second thread
    expected = op("int8_linear", "int8_linear", "cpu")(x, integers, scales)
    torch.set_num_threads(threads)
    assert torch.equal(op("int8_linear", "int8_linear", "cpu")(x, integers, scales), expected)
