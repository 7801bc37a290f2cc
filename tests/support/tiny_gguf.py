"""A whole but tiny GGUF file: random weights and a byte-level tokenizer, written in milliseconds."""

from pathlib import Path

import gguf
import numpy as np

VOCABULARY = 264
HIDDEN, HEADS, KV_HEADS, LAYERS, FEED_FORWARD = 32, 4, 2, 2, 64
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens() -> list[str]:
    """The 256 printable stand-ins that byte-level BPE has for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (code for code in range(256) if code not in printable)
    stand_in = {code: chr(code) for code in printable}
    stand_in.update({code: chr(256 + index) for index, code in enumerate(others)})
    return [stand_in[code] for code in range(256)]


def write_tiny_gguf(path: Path, *, architecture: str = "llama", seed: int = 0, tokenizer: bool = True) -> Path:
    """Write a two-layer model of the given architecture name, with llama's tensors, and return its path."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    if tokenizer:
        add_tokenizer(writer)
    for name, array in tensors(seed).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>"]
    tokens = special + byte_tokens() + ["ab", "cd", "ef", "gh"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(special) + [1] * (len(tokens) - len(special)))
    writer.add_token_merges(["a b", "c d", "e f", "g h"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def tensors(seed: int) -> dict[str, np.ndarray]:
    """Random float32 weights under llama's GGUF names; the output matrix is the embedding."""
    random = np.random.default_rng(seed)
    kv_width = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        block = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv_width, HIDDEN),
            "attn_v": (kv_width, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }
        shapes.update({f"blk.{layer}.{name}.weight": shape for name, shape in block.items()})
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
