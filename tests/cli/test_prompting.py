"""From text, question and answer prefix to tokens."""

import copy

import pytest
from transformers import LlamaConfig

from rocketkv.hf.prompting import PromptError, answer_room, prompt_ids, read_text


def test_the_question_follows_the_text_and_the_prefix_begins_the_answer(tokenizer):
    ids = prompt_ids(tokenizer, "Text.\n", question="Why?", answer_prefix="Because")
    assert tokenizer.decode(ids) == ("<|im_start|>user\nText.\n\nWhy?<|im_end|>\n<|im_start|>assistant\nBecause")
    special = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [token for token in ids if token in special] == [special[0], special[1], special[0]]


def test_without_a_question_the_text_is_left_as_it_is(tokenizer):
    assert "Text.\n\n<|im_end|>" in tokenizer.decode(prompt_ids(tokenizer, "Text.\n\n"))


def test_without_a_chat_template_the_parts_follow_each_other(tokenizer):
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    assert plain.decode(prompt_ids(plain, "Text.")) == "Text."
    assert plain.decode(prompt_ids(plain, "Text.", question="Why?", answer_prefix="Because")) == (
        "Text.\n\nWhy?\nBecause"
    )


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfText\r\n")
    assert read_text(str(tmp_path / "bom.txt")) == "Text\r\n"


def test_room_for_the_answer():
    config = LlamaConfig(max_position_embeddings=100)
    assert answer_room(90, config) == 11
    assert answer_room(100, config) == 1
    with pytest.raises(PromptError, match=r"101 tokens .* holds 100"):
        answer_room(101, config)
    with pytest.raises(PromptError, match="no tokens"):
        answer_room(0, config)
