"""The embedded default: Python's own language reference as a long document, with one fact planted in it.

The wording of fact, question and answer is that of RULER's needle task (Hsieh et al., 2024,
arXiv:2404.06654).
"""

from __future__ import annotations

from dataclasses import dataclass

KEY = "lantern"
NUMBER = 4917362
DEPTH = 0.7
# About 4,000 tokens of SmolLM2: the longest length at which it answers dependably from its full cache.
DOCUMENT_CHARACTERS = 16_000


@dataclass(frozen=True)
class Demo:
    """A text with a fact in it, the question, the beginning of the answer, and what it must contain."""

    text: str
    needle: str
    question: str
    answer_prefix: str
    fact: str


def language_reference() -> str:
    """The topics of Python's help, which CPython carries as data, in alphabetical order."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def make_demo(
    characters: int = DOCUMENT_CHARACTERS, depth: float = DEPTH, key: str = KEY, number: int = NUMBER
) -> Demo:
    """The language reference, cut between paragraphs, with the fact planted at `depth` (0 to 1)."""
    paragraphs = language_reference()[:characters].split("\n\n")[:-1]
    place = int(len(paragraphs) * depth)
    needle = f"One of the special magic numbers for {key} is: {number}."
    return Demo(
        text="\n\n".join([*paragraphs[:place], needle, *paragraphs[place:]]),
        needle=needle,
        question=f"What is the special magic number for {key} mentioned in the provided text?",
        answer_prefix=f"The special magic number for {key} mentioned in the provided text is",
        fact=str(number),
    )
