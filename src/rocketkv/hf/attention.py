"""The attention and mask functions that an attached model calls.

With any other cache, both pass everything on to the attention the model had before. With ours, the attention function
finds the layer that the cache handed over and follows `rocketkv.attend`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rocketkv.attend import decode_attend, prefill_attend
from rocketkv.hf.compat import handed_over
from rocketkv.hf.errors import UnsupportedModelError
from rocketkv.ops.dispatch import op

NAME = "rocketkv"
BASES: dict[int, str] = {}
"""id of an attached config -> the attention it had before; kept by `hf.attach`."""


def base_attention(module: torch.nn.Module) -> Any:
    """The attention function that `module` would call if its model were not attached."""
    name = BASES[id(module.config)]
    if name == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[name]


def mask_function(*args: Any, config: Any = None, **kwargs: Any) -> Any:
    """The mask that the model's own attention would be given."""
    base = BASES.get(id(config), "sdpa")
    if base not in ALL_MASK_ATTENTION_FUNCTIONS:
        return None
    return ALL_MASK_ATTENTION_FUNCTIONS[base](*args, config=config, **kwargs)


def attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of rotated query [B, H, q, D] over key, value [B, G, q, D] -> [B, q, H, Dv], weights or None."""
    layer = handed_over(key, kwargs)
    base = base_attention(module)
    if layer is None:
        return base(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
    refuse_logit_terms(module, kwargs)
    batch, heads, new, head_dim = query.shape
    q = query.view(batch, key.shape[1], -1, new, head_dim)
    scale = head_dim**-0.5 if scaling is None else scaling
    weights = None

    def dense(
        stored_q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, counts: torch.Tensor | None
    ) -> torch.Tensor:
        nonlocal weights
        if counts is not None:
            return op("attend_prompt", "attend_prompt")(stored_q, keys, values, counts, scaling=scale)
        out, weights = base(module, query, keys, values, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
        return out.transpose(1, 2).view(*q.shape[:-1], -1)

    state = layer.take()
    if state.is_prompt(new):
        valid = new_tokens_valid(attention_mask, new)
        out = prefill_attend(q, key, value, state, valid=valid, scaling=scale, dense=dense)
        layer.prompt_read()
    else:
        out = decode_attend(q, key, value, state, scaling=scale, dense=dense)
    return out.reshape(batch, heads, new, -1).transpose(1, 2).contiguous(), weights


def new_tokens_valid(mask: torch.Tensor | None, new: int) -> torch.Tensor | None:
    """Which of the `new` last columns hold tokens, [B, new], read off the mask of the last query; None if all do.

    Raises ValueError for padding on the right or in the middle: the last column must be a row's newest token.
    """
    if mask is None:
        return None
    row = mask[:, -new:] if mask.dim() == 2 else mask[:, 0, -1, -new:]
    valid = row if row.dtype == torch.bool else (row > 0 if mask.dim() == 2 else row > torch.finfo(row.dtype).min / 2)
    if bool(valid.all()):
        return None
    if not bool((valid[:, :-1] <= valid[:, 1:]).all()):
        raise ValueError(
            "the prompt is padded on the right or has holes: pad on the left (tokenizer.padding_side='left')"
        )
    return valid


def refuse_logit_terms(module: torch.nn.Module, kwargs: dict[str, Any]) -> None:
    """Raise UnsupportedModelError if this attention has a term that the sparse path does not compute."""
    for name in ("softcap", "s_aux", "sinks"):
        if kwargs.get(name) is not None or getattr(module, name, None) is not None:
            raise UnsupportedModelError(
                f"{type(module).__name__} adds {name!r} to its attention, which compressed caches do not compute: "
                "use another model, or its own cache"
            )


AttentionInterface.register(NAME, attention_function)
AttentionMaskInterface.register(NAME, mask_function)
