"""What RULER's thirteen tasks share: wording, sizes, and the loop that makes examples (Hsieh et al., arXiv:2404.06654).

Wording, counts and steps of size are the original's, so that prompts mean the same and are as long; the random numbers
are our own, one stream an example. A length includes the generated tokens, and the chat template where it is used.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rocketkv.evals.task import Example, Task
from rocketkv.evals.tasks.fitting import count_tokens, largest_size, next_smaller, room_for_prompt
from rocketkv.evals.tasks.match import string_match_all

SAMPLES = 500
"""As many as in the original."""


@dataclass(frozen=True)
class Draft:
    """One prompt at one size, and its right answers."""

    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The whole prompt."""
        return self.context + self.question + self.answer_prefix


@dataclass(frozen=True)
class RulerTask(Task):
    """A generator of prompts that grow with a size: words, lines, documents.

    variant: the original's name of the task.
    chat: whether the chat template wraps the prompt; the original's base template has none.
    """

    variant: str
    chat: bool = False

    new_tokens: ClassVar[int]
    """Tokens to generate."""

    @property
    def name(self) -> str:
        """The original's name behind "ruler/"."""
        return f"ruler/{self.variant}"

    @abc.abstractmethod
    def step(self, max_tokens: int) -> int:
        """Sizes are multiples of this one."""

    @abc.abstractmethod
    def draft(self, size: int, index: int, draw: random.Random, *, tokenizer: Any, max_tokens: int) -> Draft:
        """Example `index` at a size. `draw` always starts alike, so that sizes differ in length alone."""

    def most(self) -> int | None:
        """The largest size, if there is one."""
        return None

    def count(self) -> int:
        """How many examples there are if nobody says."""
        return SAMPLES

    def answer_text(self, references: tuple[str, ...]) -> str:
        """The answer as it would be written; the size is chosen so that it fits besides the generated tokens."""
        return " ".join(references)

    def examples(self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42) -> Iterator[Example]:
        """As `Task.examples`. The first example decides the size; a later one that is too long gets a smaller one."""
        room = room_for_prompt(tokenizer, max_tokens=max_tokens, new_tokens=self.new_tokens, chat=self.chat)

        def made(size: int, index: int) -> Draft:
            draw = random.Random(f"{self.name}/{seed}/{index}")
            return self.draft(size, index, draw, tokenizer=tokenizer, max_tokens=max_tokens)

        def tokens_with_answer(size: int) -> int:
            first = made(size, 0)
            return count_tokens(tokenizer, first.text + self.answer_text(first.references))

        step = self.step(max_tokens)
        first_size = largest_size(tokens_with_answer, step=step, limit_tokens=room, most=self.most())
        for index in range(min(self.count() if n is None else n, self.count())):
            size = first_size
            while (tokens := count_tokens(tokenizer, (draft := made(size, index)).text)) > room:
                size = next_smaller(size, step)
                if size == 0:
                    raise ValueError(
                        f"{self.name}: example {index} has {tokens:,} tokens at its smallest and there is room for "
                        f"{room:,}: choose a longer length"
                    )
            meta = {
                "task": self.name, "length_tokens": max_tokens, "seed": seed, "index": index, "size": size,
                "ruler_length": tokens + self.new_tokens, **draft.meta,
            }  # fmt: skip
            yield Example(
                f"{self.name}-{max_tokens}-{seed}-{index}" + self._suffix(), draft.context, draft.question,
                draft.answer_prefix, draft.references, self.new_tokens, self.chat, meta,
            )  # fmt: skip

    def score(self, prediction: str, example: Example) -> float:
        """The share of references that occur in the prediction."""
        return string_match_all(prediction, example.references)

    def _suffix(self) -> str:
        """What options add to the id."""
        return "-chat" if self.chat else ""
