"""Answer one prompt and write a page that shows, token by token, what every layer and head kept and read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketkv.commands.errors import UsageError
from rocketkv.commands.parser import (
    add_model_arguments,
    add_policy_arguments,
    add_prompt_arguments,
    setting,
    whole,
)
from rocketkv.commands.running import open_session, policy_from, prompt_text
from rocketkv.commands.terminal import Teller, megabytes

if TYPE_CHECKING:
    from rocketkv.evals.inspect_page import PageText
    from rocketkv.evals.inspection import Inspection
    from rocketkv.policies.base import Policy

HELP = "one HTML page of a prompt and its answer: which tokens were kept and read, and why it came out so"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    group = add_policy_arguments(parser)
    group.add_argument("--set", dest="settings", type=setting, action="append", default=[], metavar="KEY=VALUE",
                       help="an option of the policy; repeatable")  # fmt: skip
    group = parser.add_argument_group("inspection")
    group.add_argument(
        "--expect", metavar="TEXT", help="words that the answer should hold: the page follows their place in the prompt"
    )
    group.add_argument(
        "--max-new-tokens", type=whole(1), default=64, metavar="N",
        help="stop limit of the greedy answer (default %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--planned-new-tokens", type=whole(0), default=0, metavar="N",
        help="generation length that the plan counts on; no stop limit (default %(default)s)",
    )  # fmt: skip
    group.add_argument("--no-full", action="store_true", help="leave out the answer from the full cache beside it")
    group.add_argument("--out", type=Path, required=True, metavar="FILE", help="the page, such as answer.html")
    parser.set_defaults(temperature=0.0, seed=0)


def run(args: argparse.Namespace) -> None:
    """Write the page, and print the answer and the verdict."""
    teller = Teller(quiet=False)
    text = prompt_text(args)
    if args.expect is not None and not args.expect.strip():
        raise UsageError("--expect is empty: give words that the answer should hold, or leave it out")
    if args.out.is_dir():
        raise UsageError(f"--out {args.out} is a directory: name a file in it, such as {args.out / 'answer.html'}")
    policy = policy_from(args.policy, args.budget, dict(args.settings))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    session = open_session(args, teller, text)

    from rocketkv.evals.inspect_page import write_page
    from rocketkv.evals.inspection import inspect_answer
    from rocketkv.policies.full import FullKV

    session.announce([FullKV()])  # the prompt is read whole, for every policy
    found = inspect_answer(
        session.model,
        policy,
        session.ids,
        max_new_tokens=session.new_tokens(),
        planned_new_tokens=args.planned_new_tokens,
        full=not args.no_full,
        backend=args.backend,
        on_prompt_layer=teller.reading(len(session.ids)),
    )
    words = page_text(found, session.tokenizer, args, policy)
    write_page(found, words, args.out)
    print(f"answer   {text_of(session.tokenizer, found.answer_ids)!r}")
    if found.full_ids is not None:
        print(f"full     {text_of(session.tokenizer, found.full_ids)!r}")
    print("\n".join([f"verdict  {words.verdict.label}", *words.verdict.sentences]))
    teller.note(f"wrote {args.out}, {megabytes(args.out.stat().st_size)}")


def page_text(found: Inspection, tokenizer: Any, args: argparse.Namespace, policy: Policy) -> PageText:
    """The words of the page, and the verdict where an answer was expected."""
    from rocketkv.evals.inspect_page import PageText
    from rocketkv.evals.token_text import token_pieces, wanted
    from rocketkv.evals.verdict import describe, judge

    pieces = token_pieces(tokenizer, [*found.prompt_ids, *found.answer_ids])
    full = None if found.full_ids is None else token_pieces(tokenizer, [*found.prompt_ids, *found.full_ids])
    special = set(tokenizer.all_special_ids)
    marked: list[tuple[int, int]] = []
    verdict = describe(found)
    if args.expect is not None:
        pattern = wanted(args.expect)
        marked = expected_places(pieces[: found.prompt_tokens], pattern, args.question)
        answers = [None if ids is None else text_of(tokenizer, ids) for ids in (found.answer_ids, found.full_ids)]
        verdict = judge(found, args.expect.strip(), pattern, marked, answers[0] or "", answers[1])
    named = policy.name if policy.whole else f"{policy.name} {policy.budget_tokens}"
    options = ", ".join(f"{name}={value}" for name, value in args.settings)
    facts = [
        ("model", args.model),
        ("policy", f"{named} ({options})" if options else named),
        ("prompt", f"{found.prompt_tokens:,} tokens"),
        ("answer", f"{len(found.answer_ids):,} tokens, greedy"),
        ("layers x KV heads", f"{len(found.layers)} x {found.kept.shape[1]} compressed"),
    ]
    return PageText(
        f"{named}: {verdict.label}",
        pieces,
        [token in special for token in [*found.prompt_ids, *found.answer_ids]],
        verdict,
        None if full is None else full[found.prompt_tokens :],
        marked,
        facts,
    )


def expected_places(pieces: Sequence[str], pattern: re.Pattern[str], question: str) -> list[tuple[int, int]]:
    """Where the prompt holds the pattern before its question, whose own words are always kept; else anywhere in it."""
    from rocketkv.evals.token_text import places

    found = places(pieces, pattern)
    asked = places(pieces, re.compile(re.escape(question))) if question else []
    before = [span for span in found if not asked or span[1] <= asked[-1][0]]
    return before or found


def text_of(tokenizer: Any, ids: list[int]) -> str:
    """An answer's tokens as text."""
    return str(tokenizer.decode(ids, skip_special_tokens=True))
