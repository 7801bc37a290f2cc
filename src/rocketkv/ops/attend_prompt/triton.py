"""Dense attention of a later turn's prompt on a GPU: PyTorch's own fused kernel, which the reference calls."""

from rocketkv.ops.attend_prompt.reference import attend_prompt

__all__ = ["attend_prompt"]
