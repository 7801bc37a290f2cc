"""How much text fits in a length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocketkv.evals.prompts import template_tokens


def count_tokens(tokenizer: Any, text: str) -> int:
    """How many tokens a text has, special tokens left out."""
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def uses_chat(tokenizer: Any, chat: bool | None) -> bool:
    """Whether the chat template is used: as told, or if the tokenizer has one where nothing is told."""
    return tokenizer.chat_template is not None if chat is None else chat


def room_for_prompt(tokenizer: Any, *, max_tokens: int, new_tokens: int, chat: bool) -> int:
    """How many tokens the text of a prompt may have beside the template and the generated tokens.

    Raises ValueError if that is none.
    """
    around = template_tokens(tokenizer, chat=chat)
    room = max_tokens - new_tokens - around
    if room < 1:
        raise ValueError(
            f"a length of {max_tokens:,} tokens leaves no prompt beside {new_tokens:,} generated tokens and {around:,} "
            "of the template: choose a longer one"
        )
    return room


def largest_size(tokens_of: Callable[[int], int], *, step: int, limit_tokens: int, most: int | None = None) -> int:
    """The largest multiple of `step` whose prompt has at most `limit_tokens`; `tokens_of` grows with the size.

    Where not even one step fits, the step is halved. `most`: no size above it, whether a multiple or not.

    Raises:
        ValueError: if size 1 does not fit, with the tokens that it takes.
    """
    while step > 1 and tokens_of(_capped(step, most)) > limit_tokens:
        step //= 2
    least = tokens_of(1) if step == 1 else 0
    if least > limit_tokens:
        raise ValueError(
            f"the smallest prompt has {least:,} tokens and there is room for {limit_tokens:,}: choose a longer length"
        )
    fits, fails = 1, 2
    while tokens_of(_capped(fails * step, most)) <= limit_tokens:
        if most is not None and fails * step >= most:
            return most
        fits, fails = fails, 2 * fails
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if tokens_of(_capped(middle * step, most)) <= limit_tokens:
            fits = middle
        else:
            fails = middle
    return _capped(fits * step, most)


def next_smaller(size: int, step: int) -> int:
    """The size to try after one that was too large: a step less, or half of what is left; 0 when nothing is."""
    return size - step if size > step else size // 2


def _capped(size: int, most: int | None) -> int:
    return size if most is None else min(size, most)
