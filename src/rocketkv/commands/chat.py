"""Talk with a model over one compressed cache. /help says what else can be typed; Ctrl-C ends an answer, Ctrl-D all.

When standard input is no terminal, every line is a turn, and only the answers are printed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rocketkv.commands.errors import USER_ERRORS, UsageError, one_line
from rocketkv.commands.parser import add_model_arguments, add_policy_arguments, number, setting, whole
from rocketkv.commands.running import policy_from
from rocketkv.commands.terminal import Teller

if TYPE_CHECKING:
    from rocketkv.hf.chat import Conversation

HELP = "a conversation of many turns over one compressed cache"
COMMANDS = {
    "/report": "what the cache holds and reads",
    "/reset": "forget the conversation",
    "/help": "this list",
    "/exit": "end (or Ctrl-D)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_model_arguments(parser)
    group = add_policy_arguments(parser, "rocketkv-mt")
    group.add_argument(
        "--set", dest="settings", type=setting, action="append", default=[], metavar="KEY=VALUE",
        help="an option of the policy, such as split=0.5; repeatable",
    )  # fmt: skip
    group = parser.add_argument_group("answers")
    group.add_argument(
        "--max-new-tokens", type=whole(1), default=256, metavar="N", help="of each answer (default %(default)s)"
    )
    group.add_argument("--temperature", type=number(0), default=0.0, metavar="T", help="0 is greedy (default)")
    group.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of sampling (default %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Answer turn by turn until the input ends. Raises UsageError at the end if a piped turn was refused."""
    policy = policy_from(args.policy, args.budget, dict(args.settings))
    talk = Talk(open_conversation(args, policy), Teller(quiet=not sys.stdin.isatty()), sys.stdin.isatty())
    if talk.interactive:
        talk.teller.note(f"{policy.name}: type a message, or /help")
    for line in talk.lines():
        if not talk.handle(line):
            break
    if talk.refused and not talk.interactive:
        raise UsageError(f"{talk.refused} of the turns had no answer")


def open_conversation(args: argparse.Namespace, policy: Any) -> Conversation:
    """The model that `args` name, in a conversation under `policy`. Raises as `generate` does."""
    import torch

    from rocketkv.hf.attach import check_model
    from rocketkv.hf.bars import only_errors
    from rocketkv.hf.chat import Conversation
    from rocketkv.hf.models import load_model
    from rocketkv.ops.dispatch import backend_names

    backend_names(args.backend)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    only_errors()
    teller = Teller(quiet=not sys.stdin.isatty())
    model, tokenizer = load_model(
        args.model, dtype=getattr(torch, args.dtype), weights=args.weights, progress=teller.note
    )
    check_model(model)
    names = ("max_new_tokens", "temperature", "seed", "backend")
    return Conversation(model, tokenizer, policy, **{name: getattr(args, name) for name in names})


class Talk:
    """Lines in, answers out. `refused` counts turns that were not answered."""

    def __init__(self, conversation: Conversation, teller: Teller, interactive: bool) -> None:
        self.conversation, self.teller, self.interactive = conversation, teller, interactive
        self.refused = 0

    def lines(self) -> Iterator[str]:
        """What the user types, until the end of input."""
        while True:
            try:
                if self.interactive:
                    import readline  # noqa: F401  (line editing, and a history of what was typed)

                    yield input("> ")
                elif line := sys.stdin.readline():
                    yield line
                else:
                    return
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                print("  (Ctrl-D or /exit ends)", file=sys.stderr)

    def handle(self, line: str) -> bool:
        """Answer one line, or do what it says. Returns whether to go on."""
        line = line.strip()
        if line in COMMANDS:
            return self.command(line)
        if line.startswith("/") and line[1:].isalpha():
            print(f"{line} is unknown: try /help, or begin the message with another sign", file=sys.stderr)
        elif line:
            self.answer(line)
        return True

    def command(self, line: str) -> bool:
        """Do what a line with a slash says. Returns whether to go on."""
        if line == "/report":
            print(self.conversation.report(), file=sys.stderr)
        elif line == "/help":
            print("\n".join(f"{name:9}{what}" for name, what in COMMANDS.items()), file=sys.stderr)
        elif line == "/reset":
            self.conversation.reset()
            self.teller.note("the conversation is forgotten")
        return line != "/exit"

    def answer(self, text: str) -> None:
        """Stream the answer to `text`; a turn that cannot be answered costs a line, not the conversation."""
        tokens = len(self.conversation.ids)
        try:
            with interrupts() as pressed:
                self.conversation.warm_up(text)
                self.conversation.ask(
                    text,
                    on_text=lambda piece: print(piece, end="", flush=True),
                    on_prompt_layer=self.teller.reading(tokens + len(self.conversation.next_ids(text))),
                    stop=lambda: bool(pressed),
                )
            print(flush=True)
        except KeyboardInterrupt:
            print(flush=True)
            self.teller.note("stopped while reading: the turn was left out")
        except USER_ERRORS as error:
            if isinstance(error, BrokenPipeError):
                raise
            self.refused += 1
            print(f"rocketkv: {one_line(error)}", file=sys.stderr)
        else:
            if pressed and not self.interactive:
                raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Collects Ctrl-C while open; a second one raises KeyboardInterrupt at once, for what does not look."""
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
