"""Retrieval tasks from published files: Lost in the Middle's key-value pairs, and LongEval's lines.

Sources: Liu et al., TACL 2024, arXiv:2307.03172; Li et al., LongEval of LongChat, 2023.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketkv.evals.hub import open_data
from rocketkv.evals.prompts import prompt_tokens
from rocketkv.evals.task import Example, Task
from rocketkv.evals.tasks.fitting import uses_chat
from rocketkv.evals.tasks.match import string_match_part
from rocketkv.evals.tasks.multi_retrieval import json_object
from rocketkv.evals.tasks.rows import read_rows

KEY_VALUE_OPENING = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
LINES_END = "\n\nNow the record is over."
NEW_TOKENS = 48


@dataclass(frozen=True)
class RowFile(Task):
    """One question a row; rows that are longer than the length are left out. `data`: the file, one row a line."""

    data: os.PathLike[str] | None = None
    chat: bool | None = None

    load_data = staticmethod(open_data)

    def examples(self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42) -> Iterator[Example]:
        """As `Task.examples`; all rows that fit if n is None. The seed changes nothing."""
        if self.data is None:
            raise ValueError(f"{self.name} needs the option data: the published file, one row a line")
        chat = uses_chat(tokenizer, self.chat)
        made = 0
        for index, row in enumerate(read_rows(Path(self.data), self._fields())):
            if made == n:
                return
            context, question, prefix, reference, found = self._parts(row)
            meta = {
                "task": self.name,
                "length_tokens": max_tokens,
                "index": index,
                "data": Path(self.data).name,
                **found,
            }
            name = f"{self.name}-{Path(self.data).stem}-{index}{'-chat' if chat else ''}"
            example = Example(name, context, question, prefix, (reference,), NEW_TOKENS, chat, meta)
            if len(prompt_tokens(tokenizer, example)) + NEW_TOKENS <= max_tokens:
                made += 1
                yield example

    def _fields(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _parts(self, row: Mapping[str, Any]) -> tuple[str, str, str, str, dict[str, Any]]:
        """Context, question, answer prefix, reference, and what a record should hold."""
        raise NotImplementedError


@dataclass(frozen=True)
class LostInTheMiddle(RowFile):
    """The value of a UUID key in a JSON object."""

    @property
    def name(self) -> str:
        """lost-in-the-middle."""
        return "lost-in-the-middle"

    def score(self, prediction: str, example: Example) -> float:
        """1 if the value occurs in the prediction."""
        return string_match_part(prediction, example.references)

    def _fields(self) -> tuple[str, ...]:
        return ("ordered_kv_records", "key", "value")

    def _parts(self, row: Mapping[str, Any]) -> tuple[str, str, str, str, dict[str, Any]]:
        pairs = [(key, value) for key, value in row["ordered_kv_records"]]
        place = next((number for number, (key, _) in enumerate(pairs) if key == row["key"]), 0)
        question = f'\n\nKey: "{row["key"]}"'
        found = {"depth": place / len(pairs), "pairs": len(pairs)}
        return KEY_VALUE_OPENING + json_object(pairs), question, "\nCorresponding value:", row["value"], found


@dataclass(frozen=True)
class LongEvalLines(RowFile):
    """The number in a line that its name picks out."""

    @property
    def name(self) -> str:
        """longeval-lines."""
        return "longeval-lines"

    def score(self, prediction: str, example: Example) -> float:
        """1 if the last whole number in the prediction is the right one, as LongEval has it."""
        numbers = re.findall(r"\d+", prediction)
        return float(bool(numbers) and int(numbers[-1]) == int(example.references[0]))

    def _fields(self) -> tuple[str, ...]:
        return ("prompt", "expected_number")

    def _parts(self, row: Mapping[str, Any]) -> tuple[str, str, str, str, dict[str, Any]]:
        context, mark, rest = row["prompt"].rpartition(LINES_END)
        if not mark:
            raise ValueError(f"a row of {self.data} has no {LINES_END.strip()!r}: take LongEval's own file")
        depth = context.find(row["correct_line"]) / len(context) if row.get("correct_line") else None
        return context, mark + rest.rstrip(), "", str(row["expected_number"]), {"depth": depth}
