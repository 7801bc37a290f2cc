"""Answer one prompt from a compressed cache. Text streams to standard output, a report to standard error."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rocketkv.commands.parser import add_policy_arguments, add_question_arguments
from rocketkv.commands.running import open_session, policy_from, prompt_text
from rocketkv.commands.terminal import Teller, duration, megabytes

if TYPE_CHECKING:
    from rocketkv.hf.answer import Answer

HELP = "answer one prompt from a compressed cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_question_arguments(parser)
    add_policy_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Generate, and print the answer as text or JSON."""
    teller = Teller(quiet=args.json)
    text = prompt_text(args)
    policy = policy_from(args.policy, args.budget, dict(args.settings))
    session = open_session(args, teller, text)
    session.announce([policy])
    if args.json:
        print(json.dumps(session.answer(policy).as_dict(), ensure_ascii=False))
        return
    answer = session.answer(policy, on_text=lambda piece: print(piece, end="", flush=True))
    print(flush=True)
    for line in report_lines(answer):
        teller.note(line)


def report_lines(answer: Answer) -> list[str]:
    """What the answer took, in a few lines."""
    plan, report = answer.plan, answer.report
    rate = answer.decode_tokens_per_s
    speed = "" if rate is None else f", then {rate:.1f} tokens/s"
    lines = [
        f"{answer.policy}: {answer.prompt_tokens:,} prompt tokens, {answer.new_tokens:,} new; {plan_words(answer)}",
        f"cache {megabytes(answer.cache_bytes)}, {100 * report.kept_fraction:.0f} % of a full one's "
        f"{megabytes(answer.full_cache_bytes)}; first token after {duration(answer.prefill_s)}{speed}",
    ]
    if plan.floors:
        lines.append(f"tokens kept are at the least that the {' and the '.join(plan.floors)} allows")
    if report.kept_fraction > 1 and not plan.dense:
        lines.append("larger than a full cache: page bounds and room to grow outweigh what was evicted")
    return lines


def plan_words(answer: Answer) -> str:
    """The plan in words; where it is dense, that nothing was evicted, and why."""
    plan = answer.plan
    if answer.policy == "full":
        return "everything kept and read"
    equivalent = answer.report.equivalent_tokens[0]
    if equivalent is not None:
        share = 100 * equivalent / plan.context_tokens
        return (
            f"kept {equivalent:,.0f} tokens per KV head ({share:.0f} %): its full heads decide that, "
            f"not the budget of {plan.budget_tokens:,}"
        )
    if not plan.dense:
        return (
            f"kept {plan.kept_tokens:,} ({100 * plan.kept_tokens / plan.context_tokens:.0f} %), "
            f"pages of {plan.page_tokens}, rank {plan.rank}, {plan.read_tokens:,} read per step"
        )
    later = "selection began when the answer outgrew it" if answer.report.sparse_steps else "every step was dense"
    return f"nothing was evicted, the prompt fits in the budget of {plan.budget_tokens:,}, and {later}"
