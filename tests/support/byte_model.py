"""A tiny llama with a tokenizer of bytes: a model that reads text, in memory or in a folder."""

from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rocketkv.hf.bars import no_bars
from support.tiny_gguf import CHAT_TEMPLATE, byte_tokens

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, three special tokens and a chat template."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *byte_tokens()])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:])
    fast.chat_template = CHAT_TEMPLATE
    return fast


@cache
def byte_model(context_tokens: int = 4096) -> LlamaForCausalLM:
    """Two layers, two KV heads of two query heads each, float32."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(SPECIAL) + 256, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=context_tokens,
            initializer_range=0.3, pad_token_id=0, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        return LlamaForCausalLM(config).eval()


def save_byte_model(folder: Path, context_tokens: int = 4096) -> Path:
    """The model and its tokenizer in a folder."""
    with no_bars():
        byte_model(context_tokens).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
