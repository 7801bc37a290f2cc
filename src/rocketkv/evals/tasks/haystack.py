"""Text that hides a needle: generated noise, CPython's language reference, a text file or a folder of text files."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rocketkv.evals.demo import language_reference

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
"""The noise of the passkey task (Mohtashami and Jaggi, 2023, arXiv:2305.16300), of RULER too."""
PIECE_WORDS = 40
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


@dataclass(frozen=True)
class Haystack:
    """A text with single spaces for all white space, and where it came from."""

    source: str
    text: str

    @property
    def words(self) -> list[str]:
        """The text in words."""
        return self.text.split(" ")

    def sentences_from(self, draw: random.Random) -> Iterator[str]:
        """Its sentences for ever, from a random one on; at the end it begins again.

        A sentence of more than PIECE_WORDS words (a table, code) comes in pieces.
        """
        sentences = [piece for sentence in split_sentences(self.text) for piece in _pieces(sentence)]
        start = draw.randrange(len(sentences))
        return itertools.chain(sentences[start:], itertools.cycle(sentences))


@cache
def load_haystack(source: str) -> Haystack:
    """The haystack called `source`: "noise", "pydoc" (CPython's language reference), or a path.

    Of a folder all files ending in .txt or .md are read, in the order of their paths.

    Raises:
        ValueError: if the path is missing, holds no text, or is not UTF-8.
    """
    if source == "noise":
        return Haystack(source, NOISE)
    if source == "pydoc":
        return Haystack(source, squeeze(language_reference()))
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md") and file.is_file())
    elif path.is_file():
        files = [path]
    else:
        raise ValueError(f"haystack {source} does not exist: give noise, pydoc, a text file or a folder of them")
    text = squeeze("\n".join(_read(file) for file in files))
    if not text:
        raise ValueError(f"haystack {source} holds no text: give a text file, or a folder with .txt or .md files")
    return Haystack(source, text)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, by full stops, question and exclamation marks before white space."""
    return [sentence for sentence in SENTENCE_END.split(text) if sentence]


def squeeze(text: str) -> str:
    """One space for every run of white space."""
    return re.sub(r"\s+", " ", text).strip()


def _pieces(sentence: str) -> list[str]:
    words = sentence.split(" ")
    return [" ".join(words[start : start + PIECE_WORDS]) for start in range(0, len(words), PIECE_WORDS)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"haystack {path} is not UTF-8 text (byte {error.start:,}): convert it first") from None
    except OSError as error:
        raise ValueError(f"haystack {path} cannot be read: {error.strerror}") from None
