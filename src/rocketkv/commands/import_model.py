"""Turn a GGUF file into a folder of safetensors, once. Prints the folder; a second import returns at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from rocketkv.commands.terminal import Teller

HELP = "turn a GGUF file into a folder of safetensors, once"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("source", metavar="SRC", help="a .gguf file, or smollm2, which is fetched first")
    parser.add_argument("--to", type=Path, metavar="DIR", help="the folder to make (default: one in the user's cache)")


def run(args: argparse.Namespace) -> None:
    """Import, and print where the model lies."""
    from rocketkv.hf.bars import only_errors
    from rocketkv.hf.importing import import_model

    only_errors()
    print(import_model(args.source, args.to, progress=Teller(quiet=False).note))
