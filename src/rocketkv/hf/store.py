"""The user's folder of imported models, and how a folder in it comes to be: whole or not at all."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from rocketkv.hf.errors import ModelError

PARTIAL_SUFFIX = ".partial"
BLOCK_BYTES = 1 << 22


def home() -> Path:
    """The folder that rocketkv keeps between runs: `$ROCKETKV_HOME`, else `~/.cache/rocketkv`."""
    return Path(os.environ.get("ROCKETKV_HOME") or "~/.cache/rocketkv").expanduser()


def imported_path(stem: str, sha256: str) -> Path:
    """Where the import of a file with this stem and digest lies, whether it is there or not."""
    return home() / "models" / f"{stem}-{sha256[:12]}"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locked(target: Path, timeout_s: float = -1.0) -> FileLock:
    """A lock, shared by all processes of this user, on making `target`; it is freed when its process ends.

    Raises ModelError if the folder for locks cannot be made.
    """
    name = hashlib.sha256(str(target.absolute()).encode()).hexdigest()[:16]
    return FileLock(_made(home() / "locks") / f"{name}.lock", timeout=timeout_s)


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Make the folder `target` by calling `write` on a folder beside it, which is then renamed.

    An interruption at any moment leaves either no `target` or a whole one, safe on disk. The caller holds
    `locked(target)`. Raises ModelError if `target` exists with anything in it or its parent cannot be made.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} exists already: remove it or choose another target")
    partial = _partial(target)
    _made(target.parent)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        write(partial)
        for path in sorted(partial.rglob("*")):
            _sync(path)
        _sync(partial)
        os.rename(partial, target)
        _sync(target.parent)
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def write_file(target: Path, blocks: Iterator[bytes]) -> None:
    """Make the file `target` out of `blocks`, whole or not at all. The caller holds `locked(target)`."""
    _made(target.parent)
    partial = _partial(target)
    try:
        with partial.open("wb") as out:
            for block in blocks:
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, target)
        _sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def remove_leftovers() -> None:
    """Remove what killed processes left half-written in the user's folder; work in progress stays."""
    for folder in (home() / "models", home() / "gguf"):
        for partial in folder.glob(f".*{PARTIAL_SUFFIX}"):
            target = folder / partial.name[1 : -len(PARTIAL_SUFFIX)]
            with _if_free(target) as free:
                if free and partial.is_dir():
                    shutil.rmtree(partial)
                elif free:
                    partial.unlink(missing_ok=True)


@contextmanager
def _if_free(target: Path) -> Iterator[bool]:
    """Hold the lock on `target` if nobody else does, and say whether it is held."""
    lock = locked(target, timeout_s=0.0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}{PARTIAL_SUFFIX}")


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"cannot make {folder} ({error.strerror}): set ROCKETKV_HOME to a folder you can write"
        ) from None
    return folder


def _sync(path: Path) -> None:
    """Have the content of a file, or the entries of a folder, written to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
