"""DuoAttention's head patterns: which KV heads keep all. A value, and the published files that hold one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

TABLE_NAME, SIZES_NAME = "full_attention_heads.tsv", "config.json"
"""The files of the published form."""
Table = tuple[tuple[float, ...], ...]


@final
@dataclass(frozen=True)
class HeadPattern:
    """Per layer and KV head a value from 0 (streaming) to 1 (retrieval), and what streaming heads keep.

    Raises ValueError for an empty or ragged table, a value out of range, and sizes that keep nothing.
    """

    values: Table
    sink_tokens: int = 128
    recent_tokens: int = 256

    def __post_init__(self) -> None:
        if not self.values or not self.values[0] or len({len(row) for row in self.values}) > 1:
            raise ValueError("a head pattern is a table of layers x KV heads: give as many values in every row")
        if any(not 0 <= value <= 1 for row in self.values for value in row):
            raise ValueError(
                "a head pattern has a value outside 0 to 1: give a table of layers x KV heads in that range"
            )
        if self.sink_tokens < 0 or self.recent_tokens < 1:
            raise ValueError(
                f"sink_tokens={self.sink_tokens}, recent_tokens={self.recent_tokens}: give at least 0 and 1"
            )

    @property
    def layers(self) -> int:
        """Rows of the table."""
        return len(self.values)

    @property
    def kv_heads(self) -> int:
        """Columns of the table."""
        return len(self.values[0])

    def table_text(self) -> str:
        """The table as the published TSV: a line a layer, a column a KV head."""
        return "".join("\t".join(f"{value:.6f}" for value in row) + "\n" for row in self.values)

    def sizes_text(self, **more: object) -> str:
        """The published JSON beside the table; `more` says where the pattern comes from."""
        return json.dumps({"sink_size": self.sink_tokens, "recent_size": self.recent_tokens} | more, indent=2) + "\n"


def read_pattern(path: str | Path) -> HeadPattern:
    """The pattern in the folder `path`, or in a table with or without the JSON of the sizes beside it.

    Raises ValueError, in one line, if a file is missing or damaged. Numbers may stand between tabs or blanks.
    """
    path = Path(path).expanduser()
    table = path / TABLE_NAME if path.is_dir() else path
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
        values = tuple(tuple(float(word) for word in line.split()) for line in lines if line.strip())
    except OSError as error:
        raise ValueError(
            f"head pattern {table}: {error.strerror}; `rocketkv calibrate duo` makes one for a model"
        ) from None
    except ValueError:
        raise ValueError(f"head pattern {table} is not a table of numbers: give a file in the published form") from None
    try:
        return HeadPattern(values, **_sizes(table.with_name(SIZES_NAME), required=path.is_dir()))
    except ValueError as error:
        raise ValueError(f"head pattern {table}: {error}") from None


def _sizes(path: Path, *, required: bool) -> dict[str, int]:
    """Sink and recent sizes in a JSON file; none where the file is not there and need not be."""
    if not path.is_file():
        if required:
            raise ValueError(
                f"{path.name} with sink_size and recent_size is not beside it: give the table alone, or both"
            )
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sizes = {"sink_tokens": found["sink_size"], "recent_tokens": found["recent_size"]}
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path.name} beside it has no sink_size and recent_size: give both as whole numbers"
        ) from None
    if not all(type(size) is int for size in sizes.values()):
        raise ValueError(f"{path.name} beside it gives sizes that are not whole numbers: {found}")
    return sizes
