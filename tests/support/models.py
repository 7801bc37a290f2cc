"""Tiny random models of every supported architecture, built in memory."""

from functools import cache

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 97
PAD = 0

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,  # peaked attention, so that what is selected matters
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": None,
}
ARCHITECTURES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama_mha": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4, "num_hidden_layers": 3}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None, "head_dim": 16}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 1}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "head_dim": 12,
            "num_hidden_layers": 3,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "query_pre_attn_scalar": 9,
        },
    ),
    "granite": (GraniteForCausalLM, GraniteConfig, {"attention_multiplier": 0.2}),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def tiny_config(name: str, **changes: object) -> object:
    """A config of a tiny model; `changes` override its fields."""
    _, config_class, own = ARCHITECTURES[name]
    return config_class(**(COMMON | own | changes))


def tiny_model(
    name: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa", **changes: object
) -> torch.nn.Module:
    """A tiny model with fixed random weights. Cached: a test that changes its model must change it back."""
    return _built(name, dtype, attention, tuple(sorted(changes.items())))


@cache
def _built(name: str, dtype: torch.dtype, attention: str, changes: tuple) -> torch.nn.Module:
    model_class = ARCHITECTURES[name][0]
    config = tiny_config(name, **dict(changes))
    config._attn_implementation = attention
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = model_class(config).eval().to(dtype)
    model.generation_config.eos_token_id = None
    return model


def prompt(tokens: int, *, seed: int = 0, rows: int = 1) -> torch.Tensor:
    """Random token ids [rows, tokens], never the padding token."""
    generator = torch.Generator().manual_seed(1000 * seed + tokens)
    return torch.randint(2, VOCABULARY, (rows, tokens), generator=generator)


def left_padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch of prompts [1, T_b] of different lengths, and its attention mask."""
    longest = max(row.shape[1] for row in rows)
    ids = torch.full((len(rows), longest), PAD)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, longest - row.shape[1] :] = row
        mask[number, longest - row.shape[1] :] = 1
    return ids, mask


def greedy(new_tokens: int, **more: object) -> dict:
    """Keyword arguments of a greedy generate that returns every step's logits."""
    return {
        "max_new_tokens": new_tokens,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
        "pad_token_id": PAD,
    } | more
