"""Answer one prompt under several policies and print the answers side by side, with what each took."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rocketkv.commands.errors import UsageError
from rocketkv.commands.parser import (
    DEFAULT_BUDGET_TOKENS,
    add_question_arguments,
    names,
    wholes,
)
from rocketkv.commands.running import Session, open_session, policy_from, prompt_text
from rocketkv.commands.table import table
from rocketkv.commands.terminal import Teller

if TYPE_CHECKING:
    from rocketkv.hf.answer import Answer
    from rocketkv.policies.base import Policy

HELP = "answer one prompt under several policies, side by side"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_question_arguments(parser)
    group = parser.add_argument_group("policies")
    group.add_argument(
        "--policies", type=names, default=["full", "rocketkv"], metavar="P,P", help="(default full,rocketkv)"
    )
    group.add_argument(
        "--budgets", type=wholes(1), default=[DEFAULT_BUDGET_TOKENS], metavar="N,N",
        help=f"each policy runs at each budget; full runs once (default {DEFAULT_BUDGET_TOKENS})",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Generate under each policy, and print a table, or a JSON list."""
    teller = Teller(quiet=args.json)
    text = prompt_text(args)
    policies = policies_from(args.policies, args.budgets, dict(args.settings))
    session = open_session(args, teller, text)
    session.announce(policies)
    answers = answer_all(session, policies)
    if args.json:
        print(json.dumps([row(*pair) for pair in zip(answers, policies, strict=True)], ensure_ascii=False))
    else:
        print(table(answers))


def policies_from(names: Sequence[str], budgets: Sequence[int], settings: Mapping[str, str]) -> list[Policy]:
    """Each named policy at each budget. An option goes to the policies that know it.

    Raises UsageError for an unknown policy, and for an option that no named policy knows or that is out of
    range.
    """
    from rocketkv.policies.registry import known_options

    policies: list[Policy] = []
    used: set[str] = set()
    for name in names:
        try:
            known = known_options(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        mine = {key: value for key, value in settings.items() if key.rpartition(".")[2] in known}
        used |= set(mine)
        policies += dict.fromkeys(policy_from(name, budget, mine) for budget in budgets)
    if unknown := sorted(set(settings) - used):
        raise UsageError(f"none of the policies {', '.join(names)} has an option {unknown[0]!r}")
    return policies


def answer_all(session: Session, policies: Sequence[Policy]) -> list[Answer]:
    """The answers in order, each from its own reading of the prompt."""
    answers = []
    for number, policy in enumerate(policies, 1):
        if session.teller.on_terminal:
            session.teller.note(f"{number} of {len(policies)}: {policy.name}")
        answers.append(session.answer(policy))
    return answers


def row(answer: Answer, policy: Policy) -> dict[str, object]:
    """An answer for JSON; the budget tells rows of one policy apart, and is null for the full cache."""
    return answer.as_dict() | {"budget_tokens": None if policy.whole else policy.budget_tokens}
