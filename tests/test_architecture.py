"""The rooms: imports go one way, heavy libraries stay in theirs, everything public says what it is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch

import rocketkv
from rocketkv.ops.attend.reference import attend
from rocketkv.ops.topk_tokens.reference import topk_tokens

PACKAGE = Path(rocketkv.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ORDER = ["types", "records", "budget", "ops", "policies", "cache", "attend", "hf"]
LEAVES = ["contexts", "evals", "bench", "vllm"]
"""Rooms above hf that do not know each other; everything else at the top level (the command line) may
import all.
"""
HEAVY = {
    "transformers": lambda path: path.startswith(("hf/", "vllm/")),
    "vllm": lambda path: path.startswith("vllm/"),
    "triton": lambda path: path.startswith("ops/") and path.endswith("/triton.py"),
    "numba": lambda path: path.startswith("ops/") and path.endswith("/cpu.py"),
    "matplotlib": lambda path: path in ("evals/plots.py", "bench/plots.py"),
    "pyarrow": lambda path: path == "evals/tasks/rows.py",
    "lm_eval": lambda path: path == "evals/lm_eval_adapter.py",
}


def room_of(path: Path) -> str:
    """The top-level folder or module a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """The dotted names of all modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from rocketkv import ops` names a room, `from rocketkv.ops import x` is one.
            names = [f".{alias.name}" for alias in node.names] if node.module == "rocketkv" else [""]
            yield from (f"{node.module}{name}" for name in names)


def allowed(importer: str, imported: str) -> bool:
    """Whether a file of one room may import from another."""
    if importer == imported:
        return True
    if importer in ORDER:
        return imported in ORDER and ORDER.index(imported) < ORDER.index(importer)
    if importer in LEAVES:
        return imported in ORDER
    return importer != "__init__"


def test_the_rule_itself() -> None:
    assert allowed("ops", "types")
    assert allowed("cli", "evals")
    assert allowed("evals", "hf")
    for importer, imported in (
        ("types", "budget"),
        ("ops", "policies"),
        ("cache", "hf"),
        ("hf", "cli"),
        ("evals", "bench"),
    ):
        assert not allowed(importer, imported)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    for name in imports_of(path):
        if name.startswith("rocketkv.") and name != "rocketkv.__version__":
            imported = name.split(".")[1]
            assert allowed(room, imported), f"{path}: {room} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_stay_in_their_rooms(path: Path) -> None:
    inside = path.relative_to(PACKAGE).as_posix()
    for name in imports_of(path):
        library = name.split(".")[0]
        assert library not in HEAVY or HEAVY[library](inside), f"{inside} imports {name}"


def public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Public functions and classes of a module, and public methods that are defined anew there."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_everything_public_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if tree.body:
        assert ast.get_docstring(tree), f"{path}: no module docstring"
    for name, node in public(tree):
        assert ast.get_docstring(node), f"{path}: {name} has no docstring"


def test_everything_exported_exists() -> None:
    for name in rocketkv.__all__:
        assert getattr(rocketkv, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = rocketkv.nothing_like_it


def test_shapes_are_checked_while_tests_run() -> None:
    ones = torch.ones(1, 1, 2)
    with pytest.raises(jaxtyping.TypeCheckError):
        topk_tokens(ones, torch.ones(1, 2).long(), torch.ones(1).long(), torch.ones(1, 1).long())
    with pytest.raises(jaxtyping.TypeCheckError):
        attend(ones, None, ones.long(), torch.ones(1, 1).long(), scaling=1.0)
