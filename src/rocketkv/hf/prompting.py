"""From a document, a question and the beginning of an answer to the exact tokens that the model reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rocketkv.hf.shape import shape_of


class PromptError(ValueError):
    """A prompt cannot be read or does not fit; the message says why in one line."""


def read_text(path: str) -> str:
    """The text of a UTF-8 file, or of standard input for `-`; a byte order mark is dropped.

    Raises:
        PromptError: if the file is missing, a directory, unreadable, empty or not UTF-8 text.
    """
    name = "standard input" if path == "-" else path
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except IsADirectoryError:
        raise PromptError(f"{name} is a directory: give a text file") from None
    except OSError as error:
        raise PromptError(f"{name} cannot be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{name} is not UTF-8 text (byte {error.start:,} of {len(data):,}): convert it first"
        ) from None
    if "\0" in text:
        raise PromptError(f"{name} is a binary file (it holds NUL bytes): give a text file")
    if not text.strip():
        raise PromptError(f"{name} is empty: there is nothing to read")
    return text


def prompt_ids(tokenizer: Any, text: str, *, question: str = "", answer_prefix: str = "") -> list[int]:
    """The tokens of a prompt: the text and, a blank line later, the question, as one turn of the user's.

    The chat template wraps that turn and opens the assistant's, which `answer_prefix` begins word for word. A
    tokenizer without a chat template gets the three parts one after the other, the prefix on a line of its
    own.
    """
    turn = f"{text.rstrip()}\n\n{question}" if question else text
    if tokenizer.chat_template is None:
        plain = f"{turn}\n{answer_prefix}" if answer_prefix else turn
        return list(tokenizer(plain)["input_ids"])
    messages = [{"role": "user", "content": turn}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # The template has written the special tokens already.
    return list(tokenizer(rendered + answer_prefix, add_special_tokens=False)["input_ids"])


def answer_room(prompt_tokens: int, config: Any) -> int | None:
    """How many tokens the model can generate after a prompt; None where its config sets no limit.

    The last one need not be read again, so that a prompt as long as the context still gets one token.

    Raises:
        PromptError: if the prompt is empty or longer than the model's context, with both numbers.
    """
    if prompt_tokens == 0:
        raise PromptError("the prompt has no tokens: there is nothing to read")
    limit = shape_of(config).context_tokens
    if limit is None:
        return None
    if prompt_tokens > limit:
        raise PromptError(
            f"the prompt has {prompt_tokens:,} tokens and the model's context holds {limit:,}: "
            "shorten the text or use a model with a longer context"
        )
    return limit - prompt_tokens + 1
