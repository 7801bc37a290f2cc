"""List every method with its paper and its options, or measure on random keys what each holds and reads."""

from __future__ import annotations

import argparse
import json

from rocketkv.commands.errors import UsageError
from rocketkv.commands.parser import whole

HELP = "every method: what it does, its paper, its options; what it holds and reads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "--measure", action="store_true",
        help="storage and traffic of every method at c = 4, 16 and 64, measured beside the formulas",
    )  # fmt: skip
    parser.add_argument(
        "--context", type=whole(1), metavar="N", help="tokens of the measured layer (default 4096, at least 1024)"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print a JSON list")
    shape.add_argument("--markdown", action="store_true", help="print both as one page, the text of docs/methods.md")


def run(args: argparse.Namespace) -> None:
    """Print the list, the table, or the page. Raises UsageError for a context that is too short."""
    from rocketkv.bench.ledger import SHRINK_FACTORS, ledgers
    from rocketkv.bench.methods_page import PAGE_CONTEXT_TOKENS, byte_table, listing, methods_page
    from rocketkv.budget import MIN_BUDGET_TOKENS
    from rocketkv.policies.catalogue import methods

    if args.context is not None and (args.markdown or not args.measure):
        raise UsageError("--context is the length that --measure measures: give it with --measure, for a table or JSON")
    context = PAGE_CONTEXT_TOKENS if args.context is None else args.context
    least = MIN_BUDGET_TOKENS * SHRINK_FACTORS[-1]
    if context < least:
        raise UsageError(f"--context {context:,} is below {least:,}, where c = 64 leaves the least budget: give more")
    if args.markdown:
        print(methods_page(methods(), ledgers(context)), end="")
    elif args.measure:
        found = ledgers(context)
        print(json.dumps([ledger.as_dict() for ledger in found]) if args.json else byte_table(found))
    else:
        print(json.dumps([method.as_dict() for method in methods()]) if args.json else listing(methods()))
