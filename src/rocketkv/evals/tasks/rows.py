"""Rows from files that the user names, checked as they are read: JSON lines, Parquet, JSON lines in a zip."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SUFFIXES = (".jsonl", ".parquet")
"""Of the files that are taken from a folder of rows."""


def read_rows(path: Path | zipfile.Path, fields: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a file with one JSON object a line, of a Parquet file, or of all such files of a folder, by name.

    Blank lines are passed over.

    Raises:
        ValueError: if the file is missing, a row is not an object, or lacks one of `fields`, with its number; if a
            folder has no such file; if pyarrow, which reads Parquet, is not installed.
    """
    if isinstance(path, Path) and path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise ValueError(f"{path} has no file of rows ({' or '.join(SUFFIXES)}): give one that has, or a file")
        for file in files:
            yield from read_rows(file, fields)
        return
    parquet = isinstance(path, Path) and path.suffix == ".parquet"
    for where, row in _parquet_rows(path) if parquet else _json_rows(path):  # type: ignore[arg-type]
        missing = [field for field in fields if not isinstance(row, dict) or field not in row]
        if missing or not isinstance(row, dict):
            raise ValueError(f"{path}, {where}: {', '.join(missing) or 'an object'} is missing")
        yield row


def find_rows(folder: Path, name: str) -> Path | zipfile.Path:
    """Where NAME.jsonl is: in the folder, in its data/, or in a zip, `folder` itself or data.zip in it.

    Zips are read in place, nothing is unpacked. Where there is none, the folder's own NAME.jsonl is returned, which
    does not exist. Raises ValueError for a damaged zip.
    """
    places: list[Path | zipfile.Path] = [folder, folder / "data"]
    for archive in (folder, folder / "data.zip"):
        if archive.suffix == ".zip" and archive.is_file():
            try:
                inside = zipfile.Path(archive)
            except zipfile.BadZipFile as error:
                raise ValueError(f"{archive} is damaged or no zip file ({error}): fetch it again") from None
            places += [inside, inside / "data"]
    files = [place / f"{name}.jsonl" for place in places]
    return next((file for file in files if file.is_file()), files[0])


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises ValueError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _json_rows(path: Path | zipfile.Path) -> Iterator[tuple[str, Any]]:
    """Each line's value, and which line it is."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start:,}): convert it first") from None
    except (zipfile.BadZipFile, RuntimeError) as error:  # damaged, or with a password
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Each row as plain values, and which row it is."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise ValueError(f"{path} is a Parquet file, which pyarrow reads: pip install 'rocketkv[data]'") from None
    try:
        number = 0
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (OSError, ArrowException) as error:
        raise ValueError(f"{path} is damaged or no Parquet file ({error}): fetch it again") from None
