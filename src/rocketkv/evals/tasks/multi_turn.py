"""What generated multi-turn tasks share: one context, several questions about it.

The form is SCBench's (Li et al., ICLR 2025, arXiv:2412.10319).
"""

from __future__ import annotations

import abc
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rocketkv.evals.prompts import later_turn_tokens, prompt_tokens
from rocketkv.evals.task import Conversation, Example, Task, Turn
from rocketkv.evals.tasks.fitting import largest_size, uses_chat
from rocketkv.evals.tasks.match import string_match_all

CONVERSATIONS = 100


def conversation_tokens(tokenizer: Any, conversation: Conversation) -> int:
    """The most tokens that a conversation can come to: all prompts, templates included, and all answers."""
    later = sum(len(later_turn_tokens(tokenizer, conversation, number)) for number in range(1, len(conversation.turns)))
    answers = len(conversation.turns) * conversation.max_new_tokens
    return len(prompt_tokens(tokenizer, conversation.example(0))) + later + answers


@dataclass(frozen=True)
class MultiTurn(Task):
    """A generator of conversations whose context grows with a size.

    turns: questions a conversation.
    chat: with the chat template; if None, where the tokenizer has one.
    """

    turns: int = 5
    chat: bool | None = None

    multi_turn: ClassVar[bool] = True
    new_tokens: ClassVar[int]
    """The stop limit of each answer."""

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"turns={self.turns} is below 1: give the number of questions")

    @abc.abstractmethod
    def draft(self, size: int, draw: random.Random) -> tuple[str, list[Turn], dict[str, Any]]:
        """The context, at least `turns` questions, and what a record should hold."""

    @property
    def least(self) -> int:
        """The smallest size there is something to ask about."""
        return self.turns

    def examples(
        self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42
    ) -> Iterator[Conversation]:
        """As `Task.examples`; the length is that of the whole conversation."""
        chat = uses_chat(tokenizer, self.chat)
        for index in range(CONVERSATIONS if n is None else n):

            def made(size: int, index: int = index) -> Conversation:
                return self._conversation(max(size, self.least), max_tokens, seed, index, chat)

            def tokens_of(size: int, made: Any = made) -> int:
                return conversation_tokens(tokenizer, made(size))

            yield made(largest_size(tokens_of, step=1, limit_tokens=max_tokens))

    def score(self, prediction: str, example: Example) -> float:
        """The share of references that occur in the prediction."""
        return string_match_all(prediction, example.references)

    def _conversation(self, size: int, max_tokens: int, seed: int, index: int, chat: bool) -> Conversation:
        context, turns, found = self.draft(size, random.Random(f"{self.name}/{seed}/{index}"))
        meta = {
            "task": self.name, "length_tokens": max_tokens, "seed": seed, "index": index, "size": size,
            "turns": self.turns, **found,
        }  # fmt: skip
        name = f"{self.name}-{max_tokens}-{seed}-{self.turns}-{index}{'-chat' if chat else ''}"
        return Conversation(name, context, tuple(turns[: self.turns]), self.new_tokens, chat, meta)
