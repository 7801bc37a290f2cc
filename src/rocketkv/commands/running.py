"""What `generate`, `compare` and `demo` share: a loaded model, a checked prompt, answers under policies."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocketkv.commands.errors import UsageError
from rocketkv.commands.terminal import Teller, duration, megabytes
from rocketkv.hf.prompting import answer_room, prompt_ids, read_text

if TYPE_CHECKING:
    from rocketkv.hf.answer import Answer
    from rocketkv.policies.base import Policy

LONG_PROMPT_TOKENS = 2048


@dataclass
class Session:
    """A model with the tokens of one prompt, and how its answers are to be generated.

    `room_tokens` is how many tokens fit after the prompt (None: no limit).
    """

    model: Any
    tokenizer: Any
    ids: list[int]
    teller: Teller
    room_tokens: int | None
    options: dict[str, Any] = field(default_factory=dict)

    def answer(self, policy: Policy, on_text: Callable[[str], None] | None = None) -> Answer:
        """The answer under one policy. Raises PrefillMemoryError if memory for reading the prompt lacks."""
        from rocketkv.hf.answer import answer
        from rocketkv.hf.memory import check_memory
        from rocketkv.hf.warm_up import warm_up

        check_memory(self.need(policy), len(self.ids))
        longest = len(self.ids) + max(self.new_tokens(), self.options.get("planned_new_tokens", 0))
        warm_up(self.model, [policy], tokens=longest, backend=self.options["backend"])  # before the moving line's clock
        options = self.options | {"max_new_tokens": self.new_tokens()}
        progress = self.teller.reading(len(self.ids))
        return answer(
            self.model, self.tokenizer, self.ids, policy, on_text=on_text, on_prompt_layer=progress, **options
        )

    def need(self, policy: Policy) -> Any:
        """What reading the prompt takes of memory under `policy`."""
        from rocketkv.hf.memory import prefill_need
        from rocketkv.hf.shape import shape_of

        head_dim = shape_of(self.model.config).head_dim
        planned = self.options.get("planned_new_tokens", 0)
        return prefill_need(
            self.model, len(self.ids), policy.plan(len(self.ids), head_dim=head_dim, new_tokens=planned)
        )

    def new_tokens(self) -> int:
        """The stop limit, lowered to what the model's context has room for."""
        wanted: int = self.options["max_new_tokens"]
        return wanted if self.room_tokens is None else min(wanted, self.room_tokens)

    def announce(self, policies: Sequence[Policy]) -> None:
        """Before a long prompt is read, say what that will take; refuse what does not fit in memory."""
        from rocketkv.hf.memory import available_bytes, check_memory, prefill_seconds

        need = max((self.need(policy) for policy in policies), key=lambda need: need.memory_bytes)
        check_memory(need, len(self.ids))
        if self.new_tokens() < self.options["max_new_tokens"]:
            self.teller.note(f"the model's context leaves room for {self.new_tokens():,} new tokens")
        if len(self.ids) < LONG_PROMPT_TOKENS or self.teller.silent:
            return
        seconds = prefill_seconds(self.model, self.ids)
        times = f", {len(policies)} times" if len(policies) > 1 else ""
        self.teller.note(
            f"reading {len(self.ids):,} tokens takes about {megabytes(need.memory_bytes)} of memory "
            f"({megabytes(available_bytes())} free) and {duration(seconds)} at the rate measured here{times}"
        )


def open_session(args: argparse.Namespace, teller: Teller, text: str) -> Session:
    """Load the model that `args` name and turn `text` and their question into its tokens.

    Raises ModelError, PromptError or BackendError, in one line with the way out.
    """
    import torch

    from rocketkv.hf.attach import check_model
    from rocketkv.hf.bars import only_errors
    from rocketkv.hf.models import load_model
    from rocketkv.ops.dispatch import backend_names

    backend_names(args.backend)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    only_errors()
    model, tokenizer = load_model(
        args.model, dtype=getattr(torch, args.dtype), weights=args.weights, progress=teller.note
    )
    check_model(model)
    ids = prompt_ids(tokenizer, text, question=args.question, answer_prefix=args.answer_prefix)
    names = ("max_new_tokens", "planned_new_tokens", "temperature", "seed", "backend")
    options = {name: getattr(args, name) for name in names}
    return Session(model, tokenizer, ids, teller, answer_room(len(ids), model.config), options)


def prompt_text(args: argparse.Namespace) -> str:
    """The text of the prompt, from the file or the argument. Raises PromptError or UsageError."""
    if args.prompt_file is not None:
        return read_text(args.prompt_file)
    if not args.prompt.strip():
        raise UsageError("--prompt is empty: there is nothing to read")
    return str(args.prompt)


def policy_from(name: str, budget_tokens: int, settings: Mapping[str, str]) -> Policy:
    """The policy `name` with options as typed. Raises UsageError for what it does not know or take."""
    from rocketkv.policies.registry import RESERVED, make_policy

    if taken := sorted(RESERVED.intersection(settings)):
        raise UsageError(f"{taken[0]} is no option of a policy: give --policy and --budget")
    try:
        return make_policy(name, budget_tokens, **settings)
    except ValueError as error:
        raise UsageError(str(error)) from None
