"""Prompts of examples as tokens: whole, cut where the question begins, and turn by turn."""

from __future__ import annotations

from typing import Any

from rocketkv.evals.task import Conversation, Example

MARK = "\u241f@@\u241f"
"""Stands for a text while a chat template is rendered; in no text of ours, and no template changes it."""


def prompt_parts(tokenizer: Any, example: Example) -> tuple[str, str]:
    """The prompt as text, cut in two: what can be read before the question is known, and the rest.

    With `example.chat` the tokenizer's chat template is written out around context and question, and the answer prefix
    begins the assistant's turn without its leading space.

    Raises:
        ValueError: if the example wants a chat template and the tokenizer has none.
    """
    if not example.chat:
        return example.context, example.question + example.answer_prefix
    opening, closing = _around(tokenizer)
    return opening + example.context, example.question + closing + example.answer_prefix.lstrip()


def prompt_tokens(tokenizer: Any, example: Example) -> list[int]:
    """The prompt read in one go, the question inside."""
    before, after = prompt_parts(tokenizer, example)
    return _ids(tokenizer, before + after, opens=not example.chat)


def prompt_token_parts(tokenizer: Any, example: Example) -> tuple[list[int], list[int]]:
    """The prompt read in two goes: up to the question, and from it. Each is tokenized alone."""
    before, after = prompt_parts(tokenizer, example)
    return _ids(tokenizer, before, opens=not example.chat), _ids(tokenizer, after, opens=False)


def later_turn_text(tokenizer: Any, conversation: Conversation, number: int) -> str:
    """What follows the answer of turn `number` - 1 up to where the answer of turn `number` (from 1) begins.

    With a chat template the text begins with what ends the assistant's turn, its end token included: leave that token
    out of what is kept of the earlier answer. Without one it is the question after a blank line.
    """
    turn = conversation.turns[number]
    if not conversation.chat:
        return f"\n\n{turn.question.lstrip()}{turn.answer_prefix}"
    messages = [
        {"role": "user", "content": "."},
        {"role": "assistant", "content": MARK},
        {"role": "user", "content": turn.question.lstrip()},
    ]
    return _rendered(tokenizer, messages).rpartition(MARK)[2] + turn.answer_prefix.lstrip()


def later_turn_tokens(tokenizer: Any, conversation: Conversation, number: int) -> list[int]:
    """`later_turn_text` as tokens, without special tokens in front."""
    return _ids(tokenizer, later_turn_text(tokenizer, conversation, number), opens=False)


def template_tokens(tokenizer: Any, *, chat: bool) -> int:
    """How many tokens surround the text of a prompt: those of the chat template, or the special tokens in front."""
    if not chat:
        return len(tokenizer("")["input_ids"])
    return len(_ids(tokenizer, "".join(_around(tokenizer)), opens=False))


def _around(tokenizer: Any) -> tuple[str, str]:
    """What the chat template writes before and after the text of a user's only turn."""
    opening, _, closing = _rendered(tokenizer, [{"role": "user", "content": MARK}]).partition(MARK)
    return opening, closing


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    if tokenizer.chat_template is None:
        raise ValueError("the tokenizer has no chat template: take the task with chat=false")
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


def _ids(tokenizer: Any, text: str, *, opens: bool) -> list[int]:
    """`opens`: the tokenizer puts its own special tokens in front; a chat template has written them already."""
    return list(tokenizer(text, add_special_tokens=opens)["input_ids"])
