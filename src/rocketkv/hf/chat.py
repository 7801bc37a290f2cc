"""A conversation over one cache: every turn feeds only the tokens that the cache has not read yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocketkv.cache.report import CacheReport
from rocketkv.hf.answer import Answer, answer
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.memory import check_memory, prefill_need
from rocketkv.hf.prompting import PromptError, prompt_ids
from rocketkv.hf.shape import shape_of
from rocketkv.hf.together import end_ids
from rocketkv.hf.warm_up import warm_up
from rocketkv.policies.base import Policy

MARK = "\u2063answer\u2063"
"""Stands for an answer while the template shows what it writes behind one."""


@dataclass(frozen=True)
class Turn:
    """An answer, and how many tokens of the conversation were fed for it (before its own)."""

    answer: Answer
    fed_tokens: int


class Conversation:
    """Turns of a user and a model that share one cache.

    Args:
        options: of `rocketkv.hf.answer.answer`, such as `temperature` and `seed`.

    The conversation is kept as tokens: what was fed, the answers as they were generated, and behind each answer what
    the chat template writes between an answer and the next one. It is never templated anew, so that a template which
    drops or changes earlier turns cannot contradict what the cache has read.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        policy: Policy,
        *,
        max_new_tokens: int,
        planned_new_tokens: int = 0,
        backend: str = "auto",
        **options: Any,
    ) -> None:
        self.model, self.tokenizer, self.policy = model, tokenizer, policy
        self.max_new_tokens, self.options = max_new_tokens, options
        self._cache_options: dict[str, Any] = {"planned_new_tokens": planned_new_tokens, "backend": backend}
        self._ends = set(end_ids(model))
        self._last_user = ""
        self.ids: list[int] = []
        """The conversation so far, end tokens of answers left out."""
        self.reset()

    def reset(self) -> None:
        """Forget everything that was said."""
        self.ids = []
        self.forget_cache()

    def forget_cache(self) -> None:
        """Drop what was read, but not what was said: the next turn reads the whole conversation again."""
        self.cache = CompressedCache(self.model, self.policy, **self._cache_options)

    def report(self) -> CacheReport:
        """What the cache holds and reads."""
        return self.cache.report()

    def warm_up(self, text: str) -> None:
        """Compile what the answer to `text` will need, before a clock starts; nothing where that has been done."""
        tokens = len(self.ids) + len(self.next_ids(text)) + self.max_new_tokens
        warm_up(self.model, [self.policy], tokens=tokens, backend=self._cache_options["backend"])

    def ask(
        self,
        text: str,
        *,
        on_text: Callable[[str], None] | None = None,
        on_prompt_layer: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Turn:
        """Answer the user's next turn.

        Args:
            on_text: called with each piece of the answer as it is complete.
            stop: asked after every token whether to end the answer there; what was said until then stays.

        Raises:
            PromptError: if the turn does not fit in the model's context (with both numbers), or the chat template
                cannot go on behind an answer. The conversation is as before.
            MemoryError: if memory lacks; the conversation is as before, and will be read again.
        """
        ids = self.ids + self.next_ids(text)
        room = self._room(len(ids))
        check_memory(self._need(len(ids)), len(ids))
        seen = self.cache.get_seq_length()
        self.cache.begin_prefill(len(ids) - seen)
        try:
            said = answer(
                self.model, self.tokenizer, ids, self.policy, cache=self.cache, stop=stop, on_text=on_text,
                on_prompt_layer=on_prompt_layer, max_new_tokens=min(self.max_new_tokens, room), **self.options,
            )  # fmt: skip
        except BaseException:
            # Some layers may have read more than others: the cache is of no use any more, the tokens are.
            self.forget_cache()
            raise
        kept = said.new_ids[:-1] if said.new_ids[-1] in self._ends else said.new_ids
        self.ids, self._last_user = ids + kept, text
        return Turn(said, len(ids) - seen)

    def next_ids(self, text: str) -> list[int]:
        """The tokens that `text` adds to the conversation, the opening of the answer included."""
        if not self.ids:
            return prompt_ids(self.tokenizer, text)
        between = f"\n{text}\n" if self.tokenizer.chat_template is None else self._between(text)
        return list(self.tokenizer(between, add_special_tokens=False)["input_ids"])

    def _between(self, text: str) -> str:
        """What the template writes from the end of an answer to the beginning of the next, with `text` in between."""
        messages = [
            {"role": "user", "content": self._last_user},
            {"role": "assistant", "content": MARK},
            {"role": "user", "content": text},
        ]
        try:
            rendered = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template raises what it likes
            raise PromptError(f"the model's chat template takes no second turn: {error}") from error
        head, mark, tail = rendered.rpartition(MARK)
        if not mark or MARK in head or text.strip() not in tail:
            raise PromptError(
                "the model's chat template does not write an answer and the next turn one after the other, so that a "
                "conversation cannot go on in one cache: start anew for every turn"
            )
        return str(tail)

    def _room(self, tokens: int) -> int:
        """How many tokens can be answered after `tokens` of conversation."""
        limit = shape_of(self.model.config).context_tokens
        if limit is None:
            return self.max_new_tokens
        if tokens > limit:
            raise PromptError(
                f"with this turn the conversation has {tokens:,} tokens, and the model's context holds {limit:,}: "
                "the turn was left out; ask for less, or start anew"
            )
        return limit - tokens + 1

    def _need(self, tokens: int) -> Any:
        head_dim = shape_of(self.model.config).head_dim
        return prefill_need(self.model, tokens, self.policy.plan(tokens, head_dim=head_dim))
