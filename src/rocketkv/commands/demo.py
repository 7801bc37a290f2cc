"""Plant a number in Python's language reference, and ask for it with a full and a compressed cache."""

from __future__ import annotations

import argparse
import json

from rocketkv.commands.compare import answer_all, row
from rocketkv.commands.parser import add_model_arguments, whole, wholes
from rocketkv.commands.running import open_session, policy_from
from rocketkv.commands.table import table
from rocketkv.commands.terminal import Teller

HELP = "the main job on an embedded document: the same answer from a full and a compressed cache"
BUDGETS = [256, 128]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_model_arguments(parser)
    parser.add_argument(
        "--budgets", type=wholes(1), default=BUDGETS, metavar="N,N",
        help=f"budgets of RocketKV (default {','.join(map(str, BUDGETS))})",
    )  # fmt: skip
    parser.add_argument("--max-new-tokens", type=whole(1), default=16, metavar="N", help="(default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(planned_new_tokens=0, temperature=0.0, seed=0)


def run(args: argparse.Namespace) -> None:
    """Answer under Full-KV and RocketKV, print both side by side, and say which found the number."""
    from rocketkv.evals.demo import make_demo

    teller = Teller(quiet=args.json)
    demo = make_demo()
    policies = [policy_from("full", 0, {}), *(policy_from("rocketkv", budget, {}) for budget in args.budgets)]
    args.question, args.answer_prefix = demo.question, demo.answer_prefix
    session = open_session(args, teller, demo.text)
    teller.note(
        f"document   Python's language reference, {len(session.ids):,} tokens with the question\n"
        f"planted    {demo.needle}\n"
        f"question   {demo.question}"
    )
    session.announce(policies)
    answers = answer_all(session, policies)
    if args.json:
        print(json.dumps([row(*pair) for pair in zip(answers, policies, strict=True)], ensure_ascii=False))
        return
    print(f"\nThe answer begins: {demo.answer_prefix}\n\n{table(answers)}")
