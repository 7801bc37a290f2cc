"""Numbers as records: append-only JSON lines, each saying what code, machine and versions it came from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "transformers", "numpy", "numba")
"""Whose versions a record holds, beside Python's and our own."""
GIT_SECONDS = 10.0


class RecordError(ValueError):
    """A file of records cannot be used; the message says which line and why."""


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line, on disk before this returns. A torn last line, of a writer that was killed, is cut off first."""
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        _cut_torn_line(file)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records of a file, in order; none if it does not exist. A torn last line is left out.

    Raises RecordError, with the line's number, for a line in the middle that is no JSON object.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise RecordError(f"{path}: line {number} is not a record: remove it, or give another file")
        records.append(record)
    return records


def stamp() -> dict[str, Any]:
    """Code, machine and versions that a number comes from: plain values, the same for the life of the process."""
    return json.loads(json.dumps(_stamp()))


def digest(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids, as hexadecimal digits: two prompts are the same text read the same way, or differ here."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


@cache
def _stamp() -> dict[str, Any]:
    commit, dirty = _commit(Path(__file__).resolve().parent)
    return {
        "commit": commit,
        "dirty": dirty,
        "host": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "system": platform.system(),
            "machine": platform.machine(),
        },
        "versions": {"rocketkv": _version("rocketkv"), "python": platform.python_version()}
        | {name: _version(name) for name in LIBRARIES},
    }


def _commit(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout that `folder` is in, and whether files in it differ from that; None outside of one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=GIT_SECONDS).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "records.py")
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", str(folder)))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        if name != "rocketkv":
            return None
        from rocketkv import __version__

        return __version__


def _cut_torn_line(file: Any) -> None:
    """Cut an open file back to its last whole line."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
