"""The command line: parse, call, and turn what the user got wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rocketkv import __version__
from rocketkv.commands import COMMANDS
from rocketkv.commands.errors import BAD_INPUT, INTERRUPTED, PIPE_CLOSED, USER_ERRORS, one_line
from rocketkv.commands.parser import Parser

ENVIRONMENT = {"GOMP_SPINCOUNT": "20000", "THP_MEM_ALLOC_ENABLE": "1"}
"""Set unless the user has, before PyTorch is loaded: how long a thread that has finished its part of a kernel waits
busily (as long as GNU OpenMP has it, steps can take 20 ms each while another program wants a core), and memory in large
pages, which rows read here and there find faster. docs/performance.md has the figures."""


def build_parser() -> Parser:
    """The parser of all commands. Nothing heavy is imported for it."""
    parser = Parser(prog="rocketkv", description="RocketKV: answer from a compressed KV cache.")
    parser.add_argument("--version", action="version", version=f"rocketkv {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 130 when interrupted. A bug raises."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        args = build_parser().parse_args(argv)
        args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has left. Standard output goes nowhere, or its flush at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except USER_ERRORS as error:
        print(f"rocketkv: {one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    return 0
