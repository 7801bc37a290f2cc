"""Compile every GPU kernel for a real target, without a GPU: run as a program, prints kernel and shared memory bytes.

Arguments: compute capability (90), storage dtype (bfloat16), head size (128), query heads per KV head (4).
"""

import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from rocketkv.ops.dispatch import op
from rocketkv.ops.kernel import triton as kernels
from rocketkv.types import RaggedKV


class Driver:
    """As much of a GPU driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        """The only one."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return GPUTarget("cuda", self.capability, 32)


def compile_all(capability: int = 90, dtype: torch.dtype = torch.bfloat16, head_dim: int = 128, group: int = 4) -> None:
    """Call every op once over a small store; each launch compiles, prints what it compiled and runs nothing."""
    driver.set_active(Driver(capability))
    kernels.INTERPRETED = True  # CPU tensors stand for the GPU's
    run = JITFunction.run

    def only_compile(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        compiled = run(self, *args, grid=grid, warmup=True, **named)
        assert compiled.asm["cubin"]
        print(self.__name__, compiled.metadata.shared)

    JITFunction.run = only_compile
    lengths = torch.tensor([[70, 30]])
    store = torch.zeros(100, head_dim, dtype=dtype)
    kv = RaggedKV(store, store, torch.tensor([[0, 70]]), lengths - 1, lengths)
    q, token = store.new_zeros(1, 2, group, head_dim), store.new_zeros(1, 2, head_dim)
    slots = torch.zeros(1, 2, 70, dtype=torch.long)
    triton = lambda folder, name: op(folder, name, "triton")  # noqa: E731
    bounds = triton("page_bounds", "build_page_bounds")(store, slots, kv.lengths, torch.tensor([3]), lengths)
    triton("page_bounds", "update_page_bounds")(bounds, token, kv.lengths)
    triton("append_token", "append_token")(token, token, kv)
    given = q, kv, None, bounds, kv.lengths, torch.tensor([16])
    triton("hybrid_attend", "hybrid_attend_within")(*given, pages=24, read=16, scaling=0.1)
    triton("dense_attend", "dense_attend")(q, kv, scaling=0.1)
    triton("quest_scores", "quest_scores")(q, bounds, kv.lengths, scaling=0.1)
    window, keys = store.new_zeros(1, 2, group, 32, head_dim), store.new_zeros(1, 2, 70, head_dim)
    triton("window_scores", "window_scores")(window, torch.tensor([32]), keys, lengths, scaling=0.1)


if __name__ == "__main__":
    capability, dtype, head_dim, group = (sys.argv[1:] + ["90", "bfloat16", "128", "4"][len(sys.argv) - 1 :])[:4]
    compile_all(int(capability), getattr(torch, dtype), int(head_dim), int(group))
