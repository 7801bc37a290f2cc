"""GPU kernels compile for a real GPU; what they cannot run is refused with the way out, and never chosen unasked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rocketkv.ops import dispatch
from rocketkv.ops.attend import reference
from rocketkv.ops.dispatch import op
from rocketkv.ops.errors import BackendError
from support.ragged import ragged_kv

pytest.importorskip("triton")
from rocketkv.ops.kernel import triton as kernels

SHARED_BYTES = 99 * 1024
"""What one program may use on the GPUs with least shared memory (compute capability 8.6 and 8.9)."""


def attention(backend: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    kv = ragged_kv([[3]], 4, dtype=dtype)
    slots, counts = torch.tensor([[[0, 2]]]), torch.tensor([[2]])
    return op("attend", "attend", backend)(torch.ones(1, 1, 1, 4, dtype=dtype), kv, slots, counts, scaling=1.0)


def test_a_cpu_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    with pytest.raises(BackendError, match=r'^attend/triton needs a CUDA device, got cpu; use backend="cpu"$'):
        attention("triton")


def test_float64_is_refused() -> None:
    with pytest.raises(BackendError, match=r"attend/triton reads float32, bfloat16 and float16, got float64; use"):
        attention("triton", torch.float64)


def test_triton_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = dispatch.find_spec
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None if name == "triton" else find(name))
    for cached in (op, dispatch._load, dispatch._installed):
        cached.cache_clear()
    with pytest.raises(BackendError, match=r"attend/triton needs triton: pip install triton"):
        attention("triton")
    for cached in (op, dispatch._load, dispatch._installed):
        cached.cache_clear()


@pytest.mark.parametrize(("device", "chosen"), [("cuda", "triton"), ("meta", "reference")])
def test_auto_goes_by_the_device(device: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        """Stands for a tensor on another device."""

        dtype, device = torch.bfloat16, torch.device("meta")

    taken = []
    Elsewhere.device = torch.device(device)
    monkeypatch.setattr(dispatch, "_load", lambda folder, name, backend: lambda *_: taken.append(backend))
    op("attend", "attend", "auto")(Elsewhere())
    assert taken == [chosen]


def test_auto_on_a_cpu_is_never_triton() -> None:
    assert reference.attend is op("attend", "attend", "reference")
    assert dispatch.FASTEST["cpu"] != "triton"


def test_kernels_compile_for_a_gpu_and_fit_its_shared_memory() -> None:
    program = Path(__file__).parents[1] / "support" / "triton_compile.py"
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    shared = [line.split() for line in done.stdout.splitlines()]
    assert len({name for name, _ in shared}) == 12, shared
    assert max(int(size) for _, size in shared) <= SHARED_BYTES, shared
