"""What is told on standard error."""

import sys

from rocketkv.commands.terminal import PromptProgress, Teller, duration, megabytes


def test_progress_says_tokens_rate_and_time_left():
    line = PromptProgress(4000).line(layers_done=10, layers=40, elapsed_s=5.0)
    assert line == "reading the prompt: 1,000 of 4,000 tokens, 200 tokens/s, 15 s left"


def test_progress_is_wiped_at_the_end(capsys):
    progress = PromptProgress(100)
    for done in range(1, 5):
        progress(done, 4)
    assert capsys.readouterr().err.endswith("\r\033[K")


def test_a_pipe_gets_no_progress_and_no_notes_beside_json(capsys):
    assert Teller(quiet=False).reading(100) is None
    Teller(quiet=True).note("hidden")
    Teller(quiet=False).note("shown")
    assert capsys.readouterr().err == "shown\n"


def test_a_terminal_gets_both(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    teller = Teller(quiet=True)
    assert teller.reading(100) is not None
    teller.note("shown")
    assert capsys.readouterr().err == "shown\n"


def test_sizes_and_times_as_people_say_them():
    assert duration(3.21) == "3.2 s"
    assert duration(90) == "90 s"
    assert duration(600) == "10 min"
    assert duration(9000) == "2.5 h"
    assert megabytes(1.5e6) == "1.5 MB"
    assert megabytes(2.345e9) == "2.35 GB"
