"""Argparse with one-line errors, and the values and groups of arguments that commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NoReturn

from rocketkv.commands.errors import BAD_INPUT

DTYPES = ("float32", "bfloat16", "float16")
WEIGHTS = ("float", "streamed", "int8")
DEFAULT_BUDGET_TOKENS = 256


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and leaves with exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())
        self.exit(BAD_INPUT, f"{self.prog}: {line} (see {self.prog} --help)\n")


def whole(least: int) -> Callable[[str], int]:
    """A reader of whole numbers of at least `least`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return read


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """A reader of finite numbers from `least` to `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or not least <= value <= most:
            limits = f"at least {least:g}" if math.isinf(most) else f"{least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text} is out of range: give {limits}")
        return value

    return read


def names(text: str) -> list[str]:
    """A reader of names with commas between them."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise argparse.ArgumentTypeError("the list is empty")
    return list(dict.fromkeys(found))


def wholes(least: int) -> Callable[[str], list[int]]:
    """A reader of whole numbers with commas between them."""
    return lambda text: [whole(least)(part) for part in names(text)]


def setting(text: str) -> tuple[str, str]:
    """A reader of key=value."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value, such as split=0.5")
    return key.strip(), value.strip()


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and how it runs."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default="smollm2",
        metavar="M",
        help="a folder, a .gguf file, a hub id (owner/name) or smollm2 (default)",
    )
    group.add_argument("--dtype", choices=DTYPES, default="float32", help="of weights and cache (default %(default)s)")
    group.add_argument(
        "--weights", choices=WEIGHTS, default="float",
        help="streamed: floats of --dtype, read by our CPU kernel; int8: 8-bit integers (default: float, PyTorch's)",
    )  # fmt: skip
    group.add_argument("--threads", type=whole(1), metavar="N", help="CPU threads (default: PyTorch's choice)")
    group.add_argument(
        "--backend",
        default="auto",
        metavar="B",
        help="which implementation of the ops runs: auto (default), reference, cpu (Numba) or triton",
    )


def add_question_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, a prompt and its answer: what commands take that answer one prompt."""
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    add_answer_arguments(parser)


def add_policy_arguments(parser: argparse.ArgumentParser, policy: str = "rocketkv") -> Any:
    """One policy by name, and its budget; returns the group, for more options of the policy."""
    group = parser.add_argument_group("policy")
    group.add_argument("--policy", default=policy, metavar="P", help="the policy by name (default %(default)s)")
    group.add_argument(
        "--budget", type=whole(1), default=DEFAULT_BUDGET_TOKENS, metavar="N",
        help="tokens read per step and KV head, by the plan (default %(default)s); full has none",
    )  # fmt: skip
    return group


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompt: a text, a question about it and the beginning of the answer."""
    group = parser.add_argument_group("prompt")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt-file", metavar="F", help="a UTF-8 text file, or - for standard input")
    source.add_argument("--prompt", metavar="TEXT", help="the text itself")
    group.add_argument(
        "--question", default="", metavar="Q", help="placed after the text, in the same turn of the chat"
    )
    group.add_argument("--answer-prefix", default="", metavar="A", help="words that the answer begins with")


def add_answer_arguments(parser: argparse.ArgumentParser) -> None:
    """The answer: how long, how chosen, how printed."""
    group = parser.add_argument_group("answer")
    group.add_argument(
        "--set", dest="settings", type=setting, action="append", default=[], metavar="KEY=VALUE",
        help="an option of the policy, such as split=0.5 or window_tokens=16; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--max-new-tokens", type=whole(1), default=64, metavar="N", help="stop limit (default %(default)s)"
    )
    group.add_argument(
        "--planned-new-tokens", type=whole(0), default=0, metavar="N",
        help="generation length that the plan counts on; no stop limit (default %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--temperature",
        type=number(0),
        default=0.0,
        metavar="T",
        help="0 is greedy (default), above 0 samples",
    )
    group.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of sampling (default %(default)s)")
    group.add_argument("--json", action="store_true", help="print JSON and nothing else on standard output")
