"""The package as others get it: a wheel that installs elsewhere, honest ranges, a light import."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """The folder of executables of a new environment, where the wheel alone was installed.

    The packages it depends on are those of the environment under test, so that nothing is downloaded.
    """
    scratch = tmp_path_factory.mktemp("wheel")
    source = scratch / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in ROOT.iterdir():
        if path.name in ("pyproject.toml", "LICENSE", "README.md"):
            shutil.copy(path, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, source])
    (wheel,) = scratch.glob("rocketkv-*.whl")
    venv.create(scratch / "venv", symlinks=True)
    python = scratch / "venv" / "bin" / "python"
    run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel])
    (packages,) = (scratch / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def run(command: list[object], **options: object) -> str:
    """Run a command away from the source tree and return its standard output; its failure fails the test."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_wheel_installs_elsewhere(elsewhere, tmp_path):
    where = run([elsewhere / "python", "-c", "import rocketkv; print(rocketkv.__file__)"], cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(elsewhere.parent)
    assert "usage" in run([elsewhere / "rocketkv", "--help"], cwd=tmp_path).lower()


def test_wheel_holds_every_file(elsewhere):
    (packages,) = (elsewhere.parent / "lib").glob("python*/site-packages/rocketkv")
    installed, source = (
        {path.relative_to(folder) for path in folder.rglob("*.*") if "__pycache__" not in path.parts and path.is_file()}
        for folder in (packages, ROOT / "src" / "rocketkv")
    )
    assert installed == source
    assert Path("evals/page/page.js") in installed


def test_import_is_light():
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import rocketkv"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    imported = {line.split("|")[-1].strip().split(".")[0] for line in result.stderr.splitlines()}
    assert "rocketkv" in imported
    assert not imported & {"transformers", "matplotlib", "huggingface_hub", "gguf", "numba", "triton"}


def test_tested_versions_lie_in_the_declared_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pinned = {name.lower().replace("_", "-"): Version(version) for name, version in pins.items()}
    declared = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, declared):
        assert pinned[requirement.name.lower()] in requirement.specifier, requirement
