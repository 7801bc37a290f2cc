"""The subcommands. Each is a module with `HELP`, `add_arguments(parser)` and `run(args)`; here is the table.

Modules import torch and transformers inside `run` alone, so that the parser answers at once.
"""

from __future__ import annotations

import argparse
from typing import Protocol

from rocketkv.commands import (
    bench,
    calibrate,
    chat,
    compare,
    demo,
    diagnose,
    evaluate,
    generate,
    import_model,
    inspect_answer,
    plan,
    policies,
    report,
)


class Command(Protocol):
    """What a module in the table offers. Its docstring is the description that --help shows."""

    __doc__: str | None
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> None: ...


COMMANDS: dict[str, Command] = {
    "generate": generate,
    "compare": compare,
    "chat": chat,
    "plan": plan,
    "policies": policies,
    "import": import_model,
    "demo": demo,
    "calibrate": calibrate,
    "diagnose": diagnose,
    "inspect": inspect_answer,
    "bench": bench,
    "eval": evaluate,
    "report": report,
}
