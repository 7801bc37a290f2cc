"""Where GPU kernels are tested: CPU tensors under Triton's interpreter, CUDA tensors with TRITON_INTERPRET=0."""

import dataclasses
import os
from typing import Any

import torch

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def there(given: Any) -> Any:
    """Tensors, and tuples and containers of tensors, on the device that kernels are tested on."""
    if isinstance(given, torch.Tensor):
        return given.to(DEVICE)
    if isinstance(given, tuple):
        return tuple(there(part) for part in given)
    if dataclasses.is_dataclass(given):
        parts = {field.name: there(getattr(given, field.name)) for field in dataclasses.fields(given)}
        return dataclasses.replace(given, **parts)
    return given


def within_twice(found: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the kernel's largest error is at most twice the reference's own, of at least one unit of float32."""

    def error(x: torch.Tensor) -> float:
        x = x.cpu().double()
        assert bool((x.isfinite() == exact.isfinite()).all())
        return float(torch.where(exact.isfinite(), x - exact, 0).abs().max())

    unit = torch.finfo(torch.float32).eps * float(exact[exact.isfinite()].abs().max())
    return error(found) <= 2 * max(error(reference), unit)
