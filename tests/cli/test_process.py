"""The command line as a process of its own: how fast it answers, what it imports, how it ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

ROCKETKV = [sys.executable, "-m", "rocketkv"]


def test_help_answers_in_under_a_second():
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([*ROCKETKV, "--help"], check=True, capture_output=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 1


@pytest.mark.parametrize(
    "arguments", [["--help"], ["generate", "--help"], ["plan", "--context", "9999", "--head-dim", "64"]]
)
def test_what_needs_no_model_imports_nothing_heavy(arguments):
    command = [sys.executable, "-X", "importtime", "-m", "rocketkv", *arguments]
    imported = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    modules = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "rocketkv.cli" in modules
    assert modules.isdisjoint({"torch", "transformers", "matplotlib", "numpy", "psutil", "safetensors"})


def test_every_command_has_help():
    for command in ("generate", "compare", "plan", "import", "demo"):
        result = subprocess.run([*ROCKETKV, command, "--help"], capture_output=True, text=True)
        assert result.returncode == 0
        assert "usage: rocketkv " + command in result.stdout


def test_interruption_ends_cleanly(make_folder):
    folder = make_folder(max_position_embeddings=30_000)
    command = [*ROCKETKV, "generate", "--model", str(folder), "--prompt", "x", "--max-new-tokens", "20000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    process.stdout.read(1)  # the answer has begun
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert _without_compilation(err.decode()) == "interrupted"


def test_a_reader_that_leaves_is_no_error(folder, document):
    command = [*ROCKETKV, "generate", "--model", str(folder), "--prompt-file", str(document)]
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run([*command, "--max-new-tokens", "9"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert process.returncode == 141
    assert _without_compilation(process.stderr) == ""


def _without_compilation(said: str) -> str:
    """Standard error without the line that announces a first compilation, which may be due in any process."""
    return "\n".join(line for line in said.strip().splitlines() if not line.startswith("rocketkv: compiling"))
