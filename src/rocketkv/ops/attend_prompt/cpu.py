"""Dense attention of a later turn's prompt on a CPU: PyTorch's own blocked kernel, which the reference calls, is the
fastest there; a kernel of ours would not beat its matrix products.
"""

from rocketkv.ops.attend_prompt.reference import attend_prompt

__all__ = ["attend_prompt"]
