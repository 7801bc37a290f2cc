"""Rows of JSON lines from a file that the user names, checked as they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def read_rows(path: Path, fields: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a file with one JSON object a line; blank lines are passed over.

    Raises:
        ValueError: if the file is missing, a line is not an object, or lacks one of `fields`, with its number.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start:,}): convert it first") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
        missing = [field for field in fields if not isinstance(row, dict) or field not in row]
        if missing or not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: {', '.join(missing) or 'an object'} is missing")
        yield row


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises ValueError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
