"""Shape checks at run time (in tests only), seeds, and the tiny models."""

import os
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

# GPU kernels run in Triton's interpreter, over CPU tensors; set TRITON_INTERPRET=0 to run their tests on a GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.insert(0, str(Path(__file__).parent))
import support.typecheck  # noqa: F401

# Must come before the first import of any rocketkv module: what is imported earlier stays unchecked.
install_import_hook("rocketkv", "support.typecheck.checked")

from support.models import tiny_model  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """The same random numbers whatever ran before. One thread for tiny tensors, where a second only costs;
    two else.
    """
    torch.manual_seed(0)
    torch.set_num_threads(2 if request.node.get_closest_marker("model") else 1)


@pytest.fixture
def llama() -> torch.nn.Module:
    """A two-layer llama with two KV heads of two query heads each, float32."""
    return tiny_model("llama")
