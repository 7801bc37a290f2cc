"""A tiny model in a folder, with a tokenizer of bytes, and the command line in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rocketkv.cli import main
from rocketkv.hf.bars import no_bars
from support.tiny_gguf import CHAT_TEMPLATE, byte_tokens

CONTEXT_TOKENS = 512
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]


@dataclass
class Result:
    """What one run of the command line left."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run `rocketkv` with these arguments, in this process."""

    def run(*arguments: object) -> Result:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as leave:
            code = int(leave.code or 0)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, three special tokens and a chat template."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *byte_tokens()])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:])
    fast.chat_template = CHAT_TEMPLATE
    return fast


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Callable[..., Path]:
    """Save a tiny llama, with changes to its config, in a folder of its own."""

    def make(**changes: object) -> Path:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "vocab_size": len(SPECIAL) + 256, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT_TOKENS,
            "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
        }  # fmt: skip
        folder = tmp_path_factory.mktemp("model")
        with no_bars():
            LlamaForCausalLM(LlamaConfig(**(sizes | changes))).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def folder(make_folder: Callable[..., Path]) -> Path:
    """The tiny llama with two KV heads of two query heads, head size 8."""
    return make_folder()


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """A text file of 300 bytes, which are as many tokens."""
    path = tmp_path / "document.txt"
    path.write_text(("the quick brown fox jumps over the lazy dog. " * 7)[:300])
    return path
