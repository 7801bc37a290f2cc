"""What a task is: examples of a given length, and a score in [0, 1] for a prediction.

A prompt is `context + question + answer_prefix`, word for word: separators belong to the parts, so that whoever reads
the context first and the question later reads the same text. `evals/prompts.py` turns the parts into tokens.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Example:
    """One prompt, and what a right answer holds.

    id: unique over task, length, seed and options; a sweep resumes by it.
    context, question, answer_prefix: the prompt is their concatenation. The context is what may be compressed before
        the question is known; the answer continues the prefix.
    references: right answers; the task's metric says whether all count or any.
    max_new_tokens: the stop limit of the answer.
    chat: whether the chat template wraps context and question as one turn of the user's.
    meta: task, length (tokens), seed, where the text came from, and what else is of use in a record; plain values.
    stop: texts after the first token of an answer at which it may end, since the score reads nothing behind them.
    """

    id: str
    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int
    chat: bool
    meta: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole prompt, without a chat template."""
        return self.context + self.question + self.answer_prefix


@dataclass(frozen=True)
class Turn:
    """One question of a conversation. `references[0]` is the golden answer that later turns may be given."""

    question: str
    references: tuple[str, ...]
    answer_prefix: str = ""


@dataclass(frozen=True)
class Conversation:
    """A shared context and several turns about it. The first turn's prompt is context + question + answer_prefix."""

    id: str
    context: str
    turns: tuple[Turn, ...]
    max_new_tokens: int
    chat: bool
    meta: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()

    def example(self, number: int) -> Example:
        """Turn `number` (from 0) as if it were the only one; `Task.score` takes it."""
        turn = self.turns[number]
        return Example(
            f"{self.id}/turn{number}", self.context, turn.question, turn.answer_prefix, turn.references,
            self.max_new_tokens, self.chat, {**self.meta, "turn": number}, self.stop,
        )  # fmt: skip


@dataclass(frozen=True)
class Task(abc.ABC):
    """A frozen value; its fields are the task's options. A new task is one file and one line in evals/registry.py."""

    multi_turn: ClassVar[bool] = False
    """Whether `examples` yields conversations."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name in the registry and in records."""

    @abc.abstractmethod
    def examples(
        self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42
    ) -> Iterator[Example] | Iterator[Conversation]:
        """Examples whose prompt, chat template and generated tokens together are at most `max_tokens` long.

        The same arguments give the same examples, and the first n of a longer run are those of a shorter one.

        Args:
            n: how many; the task's own number if None. Tasks that read a file end with it.

        Raises:
            ValueError: if nothing fits in `max_tokens`, or data is missing or malformed, with the way out.
        """

    @abc.abstractmethod
    def score(self, prediction: str, example: Example) -> float:
        """How right a prediction is, from 0 to 1. The prediction is the answer without the prefix."""
