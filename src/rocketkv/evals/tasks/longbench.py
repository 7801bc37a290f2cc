"""LongBench's 16 English tasks from a folder (Bai et al., ACL 2024, arXiv:2308.14508).

The folder holds one TASK.jsonl a task, in the published row format, or the published data.zip of them, and
config/dataset2prompt.json and config/dataset2maxlen.json, the official prompts and generation lengths. Over-length
prompts lose their middle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rocketkv.evals.hub import open_data
from rocketkv.evals.prompts import template_tokens
from rocketkv.evals.task import Example, Task
from rocketkv.evals.tasks import longbench_scores as scores
from rocketkv.evals.tasks.fitting import room_for_prompt
from rocketkv.evals.tasks.rows import find_rows, read_json, read_rows

METRICS: dict[str, scores.Metric] = {
    "narrativeqa": scores.qa_f1,
    "qasper": scores.qa_f1,
    "multifieldqa_en": scores.qa_f1,
    "hotpotqa": scores.qa_f1,
    "2wikimqa": scores.qa_f1,
    "musique": scores.qa_f1,
    "gov_report": scores.rouge,
    "qmsum": scores.rouge,
    "multi_news": scores.rouge,
    "trec": scores.classification,
    "triviaqa": scores.qa_f1,
    "samsum": scores.rouge,
    "passage_count": scores.count,
    "passage_retrieval_en": scores.retrieval,
    "lcc": scores.code_similarity,
    "repobench-p": scores.code_similarity,
}
WITHOUT_TEMPLATE = ("trec", "triviaqa", "samsum", "lcc", "repobench-p")
FIRST_LINE = ("trec", "triviaqa", "samsum")


@dataclass(frozen=True)
class LongBench(Task):
    """One task of LongBench, row by row in the file's order.

    data: the folder, or hf://datasets/OWNER/NAME.
    config: the folder of the two files of prompts and lengths, where it is not config/ in `data`: the hub has rows
        alone.
    chat: with the chat template; if None, where the tokenizer has one. Never for trec, triviaqa, samsum, lcc and
        repobench-p.
    prompt_tokens: the most that a prompt may have before the template is put around, as the official runs give it
        (3,500 for a context of 4K); if None, what the length leaves beside template and answer.
    whole: leave out rows that would be cut.
    """

    variant: str
    data: os.PathLike[str] | None = None
    chat: bool | None = None
    prompt_tokens: int | None = None
    whole: bool = False
    config: Path | None = None

    load_data = staticmethod(open_data)
    load_config = staticmethod(Path)

    @property
    def name(self) -> str:
        """LongBench's name behind "longbench/"."""
        return f"longbench/{self.variant}"

    def examples(self, tokenizer: Any, *, max_tokens: int, n: int | None = None, seed: int = 42) -> Iterator[Example]:
        """As `Task.examples`; all rows if n is None. The seed changes nothing."""
        folder = self._folder()
        template, new_tokens = _config(folder / "config" if self.config is None else self.config, self.variant)
        chat = self._chat(tokenizer)
        room = room_for_prompt(tokenizer, max_tokens=max_tokens, new_tokens=new_tokens, chat=chat)
        room += 0 if chat else template_tokens(tokenizer, chat=False)  # the cut counts special tokens itself
        limit = room if self.prompt_tokens is None else self.prompt_tokens
        made = 0
        for index, row in enumerate(read_rows(find_rows(folder, self.variant), ("context", "answers"))):
            if made == n:
                return
            parts = fitted(tokenizer, *_filled(template, row), limit_tokens=limit, room_tokens=room)
            if self.whole and parts.cut:
                continue
            made += 1
            number = row.get("lb_index", row.get("_id", index))
            meta = {
                "task": self.name, "length_tokens": max_tokens, "index": index, "row": number, "cut": parts.cut,
                "uncut_tokens": parts.uncut_tokens, "limit_tokens": min(limit, room),
                "all_classes": row.get("all_classes"),
            }  # fmt: skip
            suffix = (f"-cut{min(limit, room)}" if parts.cut else "") + ("-chat" if chat else "")
            yield Example(
                f"{self.name}-{number}{suffix}", parts.context, parts.question, "", tuple(row["answers"]), new_tokens,
                chat, meta, ("\n",) if self.variant in FIRST_LINE else (),
            )  # fmt: skip

    def score(self, prediction: str, example: Example) -> float:
        """The best of the task's metric over all references."""
        metric = METRICS[self.variant]
        answer = scores.first_line(prediction) if self.variant in FIRST_LINE else prediction
        classes = example.meta.get("all_classes") or ()
        return max((metric(answer, reference, classes) for reference in example.references), default=0.0)

    def _chat(self, tokenizer: Any) -> bool:
        if self.variant in WITHOUT_TEMPLATE:
            return False
        return tokenizer.chat_template is not None if self.chat is None else self.chat

    def _folder(self) -> Path:
        if self.data is None:
            raise ValueError(f"{self.name} needs the option data: a folder with LongBench's rows and its config/")
        return Path(self.data)


@cache
def _config(folder: Path, variant: str) -> tuple[str, int]:
    if not folder.is_dir():
        raise ValueError(
            f"{folder} does not exist: give --set config=FOLDER with dataset2prompt.json and dataset2maxlen.json, from "
            "config/ of LongBench's own repository"
        )
    prompts = read_json(folder / "dataset2prompt.json")
    lengths = read_json(folder / "dataset2maxlen.json")
    if variant not in prompts or variant not in lengths:
        raise ValueError(f"{folder} has no prompt or length for {variant}: take LongBench's own files")
    return prompts[variant], int(lengths[variant])


def _filled(template: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt up to where the context ends, and the rest. Texts are put in as they are, braces and all."""
    before, mark, after = template.partition("{context}")
    if not mark:
        raise ValueError("the prompt has no {context}: take LongBench's own dataset2prompt.json")
    return before + row["context"], after.replace("{input}", row.get("input") or "")


@dataclass(frozen=True)
class Fitted:
    """A prompt that fits, in two parts, and whether it lost its middle."""

    context: str
    question: str
    uncut_tokens: int
    cut: bool


def fitted(tokenizer: Any, context: str, question: str, *, limit_tokens: int, room_tokens: int) -> Fitted:
    """The prompt if it has at most `limit_tokens`; else the first and the last half of the limit, decoded.

    So do the official runs. Differs: where the decoded text has more than `room_tokens` (cut tokens may come apart
    again), as many tokens fewer are kept. If the cut reaches the question, all is context and the question is empty.
    """
    ids = tokenizer(context + question)["input_ids"]
    limit = min(limit_tokens, room_tokens)
    if len(ids) <= limit:
        return Fitted(context, question, len(ids), False)
    while True:
        half = limit // 2
        if half < 1:
            raise ValueError(f"no prompt fits in {room_tokens:,} tokens: choose a longer length")
        tail = tokenizer.decode(ids[-half:], skip_special_tokens=True)
        text = tokenizer.decode(ids[:half], skip_special_tokens=True) + tail
        excess = len(tokenizer(text)["input_ids"]) - room_tokens
        if excess <= 0:
            break
        limit -= excess
    split = bool(question) and tail.endswith(question)
    return Fitted(text.removesuffix(question) if split else text, question if split else "", len(ids), True)
