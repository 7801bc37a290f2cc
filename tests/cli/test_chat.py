"""`rocketkv chat`: piped lines, commands, and Ctrl-C."""

import builtins
import io
import os
import signal
import sys

import pytest

from rocketkv.commands.chat import Talk, interrupts
from rocketkv.commands.terminal import Teller


class Lines(io.StringIO):
    """Standard input that says whether it is a terminal."""

    def __init__(self, text: str, terminal: bool = False) -> None:
        super().__init__(text)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def chat(cli, folder, monkeypatch):
    """`rocketkv chat` with a tiny model, and this text on standard input."""

    def run(text: str, *more: object):
        monkeypatch.setattr(sys, "stdin", Lines(text))
        return cli("chat", "--model", folder, "--backend", "reference", "--budget", 40, "--max-new-tokens", 4, *more)

    return run


def test_piped_lines_are_turns_and_only_answers_are_printed(chat):
    result = chat("hello\n\nand a second turn\n")
    assert result.code == 0
    assert result.err == ""
    assert result.out.count("\n") >= 2
    assert chat("hello\n").out == result.out[: len(chat("hello\n").out)]


def test_any_policy(chat):
    for policy in ("full", "rocketkv", "snapkv+quest"):
        assert chat("hello\nagain\n", "--policy", policy).code == 0
    assert chat("hello\n", "--policy", "snapkvv").code == 2
    assert "no option 'nope'" in chat("hello\n", "--set", "nope=1").err


def test_commands(chat):
    result = chat("hello\n/report\n/reset\n/report\n/help\n/nonsense\n/exit\nnever read\n")
    assert result.code == 0
    assert "tokens kept" in result.err
    assert "/reset" in result.err
    assert "/nonsense is unknown" in result.err
    assert result.out == chat("hello\n").out


def test_reset_forgets(chat):
    once = chat("hello\n").out
    assert chat("hello\n/reset\nhello\n").out == 2 * once


def test_a_refused_turn_is_one_line_and_the_chat_goes_on(chat):
    result = chat("hello\n" + "x" * 600 + "\nagain\n")
    assert result.code == 2
    assert "the model's context holds 512" in result.err
    assert "1 of the turns had no answer" in result.err
    assert result.out == chat("hello\nagain\n").out


def test_the_first_ctrl_c_is_noted_and_the_second_one_raises():
    before = signal.getsignal(signal.SIGINT)
    with interrupts() as pressed:
        os.kill(os.getpid(), signal.SIGINT)
        assert len(pressed) == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


class Endless:
    """A conversation whose answers go on until they are stopped, by Ctrl-C after three pieces."""

    ids: tuple[int, ...] = ()

    def next_ids(self, text: str) -> list[int]:
        return []

    def warm_up(self, text: str) -> None:
        pass

    def ask(self, text, *, on_text, on_prompt_layer, stop):
        for piece in range(100):
            if stop():
                return
            on_text(f"{piece} ")
            if piece == 2:
                os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_stops_an_answer_and_not_the_chat(capsys):
    talk = Talk(Endless(), Teller(quiet=True), interactive=True)
    assert talk.handle("hello")
    assert capsys.readouterr().out == "0 1 2 \n"


def test_ctrl_c_at_the_prompt_goes_on_and_ctrl_d_ends(monkeypatch, capsys):
    typed = iter(["one", KeyboardInterrupt, "two", EOFError])

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr(builtins, "input", read)
    assert list(Talk(Endless(), Teller(quiet=True), interactive=True).lines()) == ["one", "two"]
    assert "Ctrl-D" in capsys.readouterr().err


def test_policies_are_listed(cli):
    out = cli("policies").out
    assert "rocketkv-mt\n" in out
    assert "arXiv:2502.14051" in out
    assert "pool_tokens: a whole number (63)" in out
    assert cli("policies", "--context", 5000).code == 2
    assert "below 1,024" in cli("policies", "--measure", "--context", 1000).err
    assert cli("policies", "--json").out.startswith('[{"name": "full"')
