"""RULER's two question-answering tasks: SQuAD and HotpotQA questions among documents that do not answer them.

Their data is read from files in the published JSON formats; nothing is downloaded.
Differs from the original: where its least number of documents does not fit, fewer are given, the ones with the answer
first.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from rocketkv.evals.hub import open_data
from rocketkv.evals.task import Example
from rocketkv.evals.tasks.match import string_match_part
from rocketkv.evals.tasks.rows import read_json
from rocketkv.evals.tasks.ruler import SAMPLES, Draft, RulerTask

INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
)
OPENING = f"{INSTRUCTION}\n\nThe following are given documents.\n\n"
FORMATS = {
    "qa_1": "SQuAD 2.0's JSON, such as dev-v2.0.json",
    "qa_2": "HotpotQA's JSON, such as hotpot_dev_distractor_v1.json",
}


@dataclass(frozen=True)
class Question:
    """A question and its answers; documents by number: those with the answer, and those to add first."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...]
    always: int
    """How many of `near`, from the first, belong to the question: they are always given if they fit."""


@dataclass(frozen=True)
class RulerQuestions(RulerTask):
    """Answer a question about one or two of many documents. `data`: the file of SQuAD (qa_1) or HotpotQA (qa_2)."""

    data: os.PathLike[str] | None = None

    new_tokens: ClassVar[int] = 32
    load_data = staticmethod(open_data)

    def step(self, max_tokens: int) -> int:
        """10 documents."""
        return 10

    def most(self) -> int:
        """All documents."""
        return len(self._load()[1])

    def count(self) -> int:
        """As many as in the original, or as there are questions."""
        return min(SAMPLES, len(self._load()[0]))

    def draft(self, size: int, index: int, draw: random.Random, *, tokenizer: Any, max_tokens: int) -> Draft:
        """As `RulerTask.draft`. The seed moves the distractors; question `index` stays the same."""
        questions, documents = self._load()
        question = questions[index]
        chosen = [*question.gold, *question.near[: question.always]][: max(size, len(question.gold))]
        rest = question.near[question.always :]
        missing = size - len(chosen)
        if missing <= len(rest):
            chosen += draw.sample(rest, max(0, missing))
        else:
            taken = {*chosen, *rest}
            others = [number for number in range(len(documents)) if number not in taken]
            chosen += [*rest, *draw.sample(others, min(missing - len(rest), len(others)))]
        draw.shuffle(chosen)
        listed = "\n\n".join(f"Document {place}:\n{documents[number]}" for place, number in enumerate(chosen, 1))
        asked = f"\n\n{INSTRUCTION}\n\nQuestion: {question.text}"
        places = [chosen.index(number) / len(chosen) for number in question.gold]
        meta = {"documents": len(chosen), "depths": places, "data": self._path().name}
        return Draft(OPENING + listed, asked, " Answer:", question.answers, meta)

    def score(self, prediction: str, example: Example) -> float:
        """1 if any answer occurs in the prediction."""
        return string_match_part(prediction, example.references)

    def _path(self) -> Path:
        if self.data is None:
            raise ValueError(f"{self.name} needs the option data: a file in the format of {FORMATS[self.variant]}")
        return Path(self.data)

    def _load(self) -> tuple[list[Question], list[str]]:
        reader = read_squad if self.variant == "qa_1" else read_hotpotqa
        return reader(self._path())


@cache
def read_squad(path: Path) -> tuple[list[Question], list[str]]:
    """The answerable questions of a SQuAD file, and its paragraphs. Raises ValueError for another format."""
    loaded = read_json(path)
    try:
        articles = loaded["data"]
        documents = sorted({p["context"] for article in articles for p in article["paragraphs"]})
        number = {text: place for place, text in enumerate(documents)}
        questions = []
        for article in articles:
            inside = [number[p["context"]] for p in article["paragraphs"]]
            for paragraph in article["paragraphs"]:
                gold = number[paragraph["context"]]
                near = tuple(place for place in dict.fromkeys(inside) if place != gold)
                questions += [
                    Question(q["question"], tuple(a["text"] for a in q["answers"]), (gold,), near, 0)
                    for q in paragraph["qas"] if not q.get("is_impossible", False)
                ]  # fmt: skip
    except (KeyError, TypeError) as error:
        raise _malformed(path, "qa_1", error) from None
    return questions, documents


@cache
def read_hotpotqa(path: Path) -> tuple[list[Question], list[str]]:
    """The questions of a HotpotQA file, and its paragraphs under their titles. Raises ValueError for another format."""
    rows = read_json(path)
    try:
        documents = sorted({_document(title, text) for row in rows for title, text in row["context"]})
        number = {text: place for place, text in enumerate(documents)}
        questions = []
        for row in rows:
            of_title = {title: number[_document(title, text)] for title, text in row["context"]}
            supporting = {title for title, _ in row.get("supporting_facts", [])}
            gold = [of_title[title] for title in of_title if title in supporting or not supporting]
            near = [place for place in of_title.values() if place not in gold]
            questions.append(Question(row["question"], (row["answer"],), tuple(gold), tuple(near), len(near)))
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(path, "qa_2", error) from None
    return questions, documents


def _document(title: str, sentences: list[str]) -> str:
    return f"{title}\n{''.join(sentences)}"


def _malformed(path: Path, variant: str, error: Exception) -> ValueError:
    return ValueError(f"{path} is not in the format of {FORMATS[variant]} ({type(error).__name__}: {error})")
