"""Rows of a benchmark from the Hugging Face hub: `hf://datasets/OWNER/NAME[@REVISION][/PATH]` becomes a local folder.

Files are fetched once into the hub client's own cache and are found there without a network afterwards.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from rocketkv.hf.bars import no_bars
from rocketkv.hf.models import hub_is_out_of_reach

SCHEME = "hf://"
FORM = re.compile(r"hf://datasets/(?P<repo>[^/@\s]+/[^/@\s]+)(?:@(?P<revision>[^/\s]+))?(?:/(?P<inside>\S+?))?/?")
KINDS = ("*.jsonl", "*.parquet", "*.zip")
"""Files with rows; nothing else is fetched, unless it is named."""


@dataclass(frozen=True)
class HubData(os.PathLike[str]):
    """Files of a dataset at one commit. As a path it is where they lie here, as text where they come from."""

    repo: str
    commit: str
    inside: str
    local: Path

    def __fspath__(self) -> str:
        return str(self.local)

    def __str__(self) -> str:
        return f"{SCHEME}datasets/{self.repo}@{self.commit}" + (f"/{self.inside}" if self.inside else "")


def open_data(text: str) -> os.PathLike[str]:
    """What the option `data` of a task names: a path, or files of the hub, which are fetched where they are not here.

    Raises ValueError, with what was asked and the way out, if they cannot be had.
    """
    return _from_hub(text) if text.startswith(SCHEME) else Path(text)


@cache
def _from_hub(text: str) -> HubData:
    match = FORM.fullmatch(text)
    inside = (match["inside"] or "") if match else ""
    if match is None or ".." in inside.split("/"):
        raise ValueError(f"{text} is not of the form hf://datasets/OWNER/NAME, @REVISION and /PATH behind it if wanted")
    repo, revision = match["repo"], unquote(match["revision"] or "main")
    # Without a path the files at the top are taken: a whole dataset may be many gigabytes.
    patterns = [inside, *(f"{inside}/{kind}" for kind in KINDS)] if inside else list(KINDS)
    offline = hub_is_out_of_reach()
    try:
        folder = _download(repo, revision, patterns, [] if inside else ["*/*"], offline)
    except Exception as error:  # the hub's client raises what it likes; either way the files did not come
        raise ValueError(_failure(text, repo, offline, error)) from error
    local = folder / inside
    if not (local.is_file() or any(found for kind in KINDS for found in local.glob(kind))):
        raise ValueError(
            f"{text} has no file of rows ({', '.join(KINDS)}) there: put the folder or the file in the dataset behind "
            f"it, as in hf://datasets/{repo}/FOLDER"
        )
    return HubData(repo, folder.name, inside, local)


def _download(repo: str, revision: str, patterns: list[str], left_out: list[str], offline: bool) -> Path:
    """The folder of a dataset's files, which is named by their commit."""
    from huggingface_hub import snapshot_download

    with no_bars():
        return Path(
            snapshot_download(
                repo, repo_type="dataset", revision=revision, allow_patterns=patterns, ignore_patterns=left_out,
                local_files_only=offline,
            )
        )  # fmt: skip


def _failure(text: str, repo: str, offline: bool, error: Exception) -> str:
    cause = " ".join(str(error).split()).split(". ")[0][:200]
    what = "the hub cannot be reached, and its files are not here" if offline else f"the hub does not give it ({cause})"
    return (
        f"{text}: {what}; where there is a network `hf download {repo} --repo-type dataset --local-dir FOLDER` fetches "
        "it: give that folder, or a file in it"
    )
