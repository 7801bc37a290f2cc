"""RULER's tasks from ready-made rows {input, outputs}, such as the original generators write."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketkv.evals.hub import open_data
from rocketkv.evals.prompts import prompt_tokens
from rocketkv.evals.task import Example, Task
from rocketkv.evals.tasks.match import string_match_all, string_match_part
from rocketkv.evals.tasks.rows import read_rows
from rocketkv.evals.tasks.ruler_needles import RECIPES

NEW_TOKENS = {"vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32, "qa_2": 32} | dict.fromkeys(RECIPES, 128)
MARKS = {
    "niah": (("\nWhat is the special magic ", "\nWhat are all the special magic "), " The special magic "),
    "vt": (("\nQuestion: Find all variables",), " Answer: According to"),
    "cwe": (("\nQuestion: What are the 10 most",), " Answer: The top 10"),
    "fwe": (("\nQuestion: Do not provide",), " Answer: According to"),
    "qa": (("\n\nAnswer the question based on the given documents.",), " Answer:"),
}
"""Where the question begins, and where after it the answer's prefix does, in the base template's wording."""


@dataclass(frozen=True)
class RulerFile(Task):
    """Rows of one of the thirteen tasks; rows longer than the length are left out.

    data: a folder with VARIANT.jsonl, or one with a folder for each length; all rows of the length's own are taken.
    """

    variant: str
    data: os.PathLike[str] | None = None
    chat: bool = False

    load_data = staticmethod(open_data)

    @property
    def name(self) -> str:
        """The original's name behind "ruler-file/"."""
        return f"ruler-file/{self.variant}"

    def examples(self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42) -> Iterator[Example]:
        """As `Task.examples`; all rows that fit if n is None. The seed changes nothing."""
        path = self._path(max_tokens)
        # Rows of the folder for this length are taken as they are: the original's fwe goes a little beyond it.
        limit = math.inf if path.parent.name == str(max_tokens) else max_tokens
        made = 0
        for index, row in enumerate(read_rows(path, ("input", "outputs"))):
            if made == n:
                return
            context, question, prefix = split_prompt(row["input"], self.variant, row.get("answer_prefix", ""))
            number = row.get("index", index)
            meta = {
                "task": self.name, "length_tokens": max_tokens, "index": number, "data": "/".join(path.parts[-2:]),
                "ruler_length": row.get("length"),
            }  # fmt: skip
            name = f"{self.name}-{path.parent.name}-{number}{'-chat' if self.chat else ''}"
            references = tuple(map(str, row["outputs"]))
            new_tokens = NEW_TOKENS[self.variant]
            example = Example(name, context, question, prefix, references, new_tokens, self.chat, meta)
            if len(prompt_tokens(tokenizer, example)) + example.max_new_tokens <= limit:
                made += 1
                yield example

    def score(self, prediction: str, example: Example) -> float:
        """The share of references that occur in the prediction; for qa whether any does."""
        match = string_match_part if self.variant.startswith("qa") else string_match_all
        return match(prediction, example.references)

    def _path(self, max_tokens: int) -> Path:
        if self.data is None:
            raise ValueError(f"{self.name} needs the option data: a folder with {self.variant}.jsonl")
        inside = Path(self.data) / str(max_tokens)
        return (inside if inside.is_dir() else Path(self.data)) / f"{self.variant}.jsonl"


def split_prompt(text: str, variant: str, prefix: str = "") -> tuple[str, str, str]:
    """Context, question and answer prefix of a prompt; `prefix` is a prefix that stands apart in the row.

    Raises ValueError if the question is not found.
    """
    starts, answer = MARKS[variant.split("_")[0]]
    begin = max(text.rfind(start) for start in starts)
    if begin < 0:
        raise ValueError(f"a row of {variant} has no {starts[0].strip()!r}: only the original's base template is known")
    if prefix and not text.endswith(prefix):
        return text[:begin], text[begin:], prefix
    cut = text.find(answer, begin)
    cut = len(text) if cut < 0 else cut
    return text[:begin], text[begin:cut], text[cut:]
