"""Every file, function and test that docs/paper_map.md names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py): (\w+)`", PAGE)))


def test_every_row_has_code_and_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    for row in rows:
        part, code, test = row.strip("| ").split(" | ")
        assert part and ".py: " in code, row
        assert "tests/" in test or "no test" in test, row


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda part: part)
def test_what_is_named_is_there(path: str, name: str) -> None:
    file = ROOT / (path if path.startswith("tests/") else f"src/rocketkv/{path}")
    assert file.is_file(), f"docs/paper_map.md names {path}, which does not exist"
    defined = {getattr(node, "name", None) for node in ast.parse(file.read_text(encoding="utf-8")).body}
    assert name in defined, f"docs/paper_map.md names {name}, which is not in {path}"
