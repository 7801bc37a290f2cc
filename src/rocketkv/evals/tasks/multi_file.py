"""Multi-turn tasks from a file in SCBench's row format: {id, context, multi_turns: [{input, answer}]}."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from rocketkv.evals.hub import open_data
from rocketkv.evals.task import Conversation, Example, Task, Turn
from rocketkv.evals.tasks.fitting import uses_chat
from rocketkv.evals.tasks.longbench_scores import qa_f1
from rocketkv.evals.tasks.match import string_match_all, string_match_part
from rocketkv.evals.tasks.multi_turn import conversation_tokens
from rocketkv.evals.tasks.rouge import rouge_l
from rocketkv.evals.tasks.rows import read_rows

METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "all": string_match_all,
    "any": string_match_part,
    "f1": lambda prediction, references: max(qa_f1(prediction, reference) for reference in references),
    "rouge": lambda prediction, references: max(rouge_l(prediction, reference) for reference in references),
}


@dataclass(frozen=True)
class SCBenchFile(Task):
    """Conversations from a file; rows whose conversation is longer than the length are left out.

    data: the file (JSON lines or Parquet), a folder of such files, or hf://datasets/microsoft/SCBench/TASK.
    metric: all or any of the references as substrings, the F1 of words, or ROUGE-L; the best over references.
    new_tokens: the stop limit of each answer.
    opening: a text before every context, such as an instruction.
    """

    data: os.PathLike[str] | None = None
    metric: Literal["all", "any", "f1", "rouge"] = "any"
    new_tokens: int = 64
    opening: str = ""
    chat: bool | None = None

    multi_turn: ClassVar[bool] = True
    load_data = staticmethod(open_data)
    load_opening = staticmethod(str)

    @property
    def name(self) -> str:
        """scbench."""
        return "scbench"

    def examples(
        self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42
    ) -> Iterator[Conversation]:
        """As `Task.examples`; all rows that fit if n is None. The seed changes nothing."""
        if self.data is None:
            raise ValueError("scbench needs the option data: a file of rows {id, context, multi_turns}")
        chat = uses_chat(tokenizer, self.chat)
        made = 0
        for index, row in enumerate(read_rows(Path(self.data), ("context", "multi_turns"))):
            if made == n:
                return
            meta = {"task": self.name, "length_tokens": max_tokens, "index": index, "data": Path(self.data).name}
            name = f"{self.name}-{Path(self.data).stem}-{row.get('id', index)}{'-chat' if chat else ''}"
            turns = tuple(_turn(turn, Path(self.data), index) for turn in row["multi_turns"])
            conversation = Conversation(name, self.opening + row["context"], turns, self.new_tokens, chat, meta)
            if turns and conversation_tokens(tokenizer, conversation) <= max_tokens:
                made += 1
                yield conversation

    def score(self, prediction: str, example: Example) -> float:
        """By the metric."""
        return METRICS[self.metric](prediction, example.references)


def _turn(turn: Any, path: Path, index: int) -> Turn:
    if not isinstance(turn, dict) or "input" not in turn or "answer" not in turn:
        raise ValueError(f"{path}, row {index}: a turn must have input and answer")
    answer = turn["answer"]
    references = tuple(map(str, answer)) if isinstance(answer, list) else (str(answer),)
    return Turn(f"\n\n{turn['input']}", references)
