"""A sweep: every example answered under every policy and budget, a record for each, never one twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from filelock import FileLock, Timeout

from rocketkv.evals.answering import Settings, TurnAnswer, answer_script, warm_up_for
from rocketkv.evals.contenders import Contender
from rocketkv.evals.errors import TaskError
from rocketkv.evals.registry import describe
from rocketkv.evals.script import Script, check_room, make_script
from rocketkv.evals.task import Conversation, Example, Task
from rocketkv.hf.together import end_ids
from rocketkv.records import RecordError, append_record, digest, read_records, stamp

SCHEMA = "rocketkv-eval-1"
RECORDS_NAME = "records.jsonl"
IDENTITY = (
    "model", "dtype", "weights", "task", "task_options", "max_tokens", "seed", "protocol", "turns",
    "planned_new_tokens", "example", "turn", "policy", "budget_tokens",
)  # fmt: skip
"""The fields that tell rows apart; a row that has a record is not run again."""
PLAN_FIELDS = ("dense", "split", "kept_tokens", "page_tokens", "rank", "read_tokens")


@dataclass(frozen=True)
class Job:
    """A task at a length. `n` examples, as many as the task has if None."""

    task: Task
    max_tokens: int
    n: int | None


@dataclass(frozen=True)
class Origin:
    """What the records of one sweep share: the model as named and loaded, and how examples are drawn and read."""

    model: str
    dtype: str = "float32"
    weights: str = "float"
    seed: int = 42
    protocol: str = "inside"
    turns: str = "golden"


@runtime_checkable
class Watcher(Protocol):
    """Is told how a sweep goes."""

    def begin(self, prompts: int, done: int) -> None:
        """There are `prompts` to answer, and `done` of them have all their records already."""

    def reading(self, number: int, tokens: int) -> Any:
        """Prompt `number` (from 1) is read now; returns what is called with (layers done, layers), or None."""

    def scored(self, records: Sequence[dict[str, Any]]) -> None:
        """Records that were written."""


def sweep(
    model: Any,
    tokenizer: Any,
    jobs: Iterable[Job],
    contenders: Sequence[Contender],
    folder: Path,
    origin: Origin,
    settings: Settings,
    watcher: Watcher,
) -> list[dict[str, Any]]:
    """Answer and score what has no record yet in `folder`, and return all records of this sweep's rows.

    Raises:
        RecordError: if the folder's records are damaged, of another prompt, or being written by another process.
        PromptError, PrefillMemoryError: if a prompt does not fit the model, or a policy the memory limit.
        TaskError: if a task has no data for a length.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(f"{folder} is being written by another sweep: wait, or give another folder") from None
    try:
        run = _Sweep(model, tokenizer, contenders, folder / RECORDS_NAME, origin, settings, watcher)
        return run.all(list(_scripts(tokenizer, jobs, origin)))
    finally:
        lock.release()


def _scripts(tokenizer: Any, jobs: Iterable[Job], origin: Origin) -> Iterator[tuple[Job, Script]]:
    for job in jobs:
        none = True
        try:
            items: Iterable[Example | Conversation]
            items = job.task.examples(tokenizer, max_tokens=job.max_tokens, n=job.n, seed=origin.seed)
            for item in items:
                none = False
                yield job, make_script(tokenizer, item, protocol=origin.protocol, mode=origin.turns)
        except ValueError as error:
            raise TaskError(f"task {job.task.name} at {job.max_tokens:,} tokens: {error}") from error
        if none:
            raise TaskError(
                f"task {job.task.name} has no example of at most {job.max_tokens:,} tokens: take a longer one"
            )


@dataclass
class _Sweep:
    model: Any
    tokenizer: Any
    contenders: Sequence[Contender]
    path: Path
    origin: Origin
    settings: Settings
    watcher: Watcher

    def all(self, scripts: list[tuple[Job, Script]]) -> list[dict[str, Any]]:
        """Run what is missing."""
        self.done = {_key(record): record for record in read_records(self.path)}
        missing = [self._missing(job, script) for job, script in scripts]
        for (_, script), places in zip(scripts, missing, strict=True):
            if places:
                check_room(script, self.model.config)
        self.watcher.begin(len(scripts), sum(not places for places in missing))
        for number, ((job, script), places) in enumerate(zip(scripts, missing, strict=True), 1):
            if places:
                self._run(number, job, script, [self.contenders[place] for place in places])
        wanted = [key for job, script in scripts for row in self._rows(job, script) for key in [_key(row)]]
        return [self.done[key] for key in wanted]

    def _run(self, number: int, job: Job, script: Script, contenders: list[Contender]) -> None:
        policies = [contender.policy for contender in contenders]
        warm_up_for(self.model, script, policies, self.settings)  # before the watcher's clock starts
        progress = self.watcher.reading(number, len(script.shared_ids))
        for answers in answer_script(self.model, self.tokenizer, script, policies, self.settings, progress):
            written = []
            for answer in answers:
                record = self._record(job, script, contenders[answer.row], answer)
                if _key(record) not in self.done:
                    append_record(self.path, record)
                    self.done[_key(record)] = record
                    written.append(record)
            self.watcher.scored(written)

    def _missing(self, job: Job, script: Script) -> list[int]:
        """Places of the contenders that lack a record of some turn. Raises RecordError for another prompt's records."""
        lacking = []
        for place, contender in enumerate(self.contenders):
            for turn in range(len(script.turns)):
                record = self.done.get(_key(self._identity(job, script, contender, turn)))
                if record is None:
                    lacking.append(place)
                elif record["prompt_sha256"] != _prompt_digest(script, turn):
                    raise RecordError(
                        f"{self.path}: the record of {script.id} is of another prompt than this sweep's: "
                        "the task or its data have changed, give another folder"
                    )
        return list(dict.fromkeys(lacking))

    def _rows(self, job: Job, script: Script) -> Iterator[dict[str, Any]]:
        for contender in self.contenders:
            for turn in range(len(script.turns)):
                yield self._identity(job, script, contender, turn)

    def _identity(self, job: Job, script: Script, contender: Contender, turn: int) -> dict[str, Any]:
        """The fields that are known before anything is run."""
        origin = dataclasses.asdict(self.origin) | {"turns": script.mode}
        return origin | {
            "task": job.task.name,
            "task_options": {key: value for key, value in describe(job.task).items() if key != "task"},
            "max_tokens": job.max_tokens,
            "planned_new_tokens": self.settings.planned_new_tokens,
            "example": script.id,
            "turn": turn,
            **contender.as_dict(),
        }

    def _record(self, job: Job, script: Script, contender: Contender, answer: TurnAnswer) -> dict[str, Any]:
        example = script.turns[answer.turn].example
        text = self.tokenizer.decode(answer.ids, skip_special_tokens=True)
        shared = answer.prompt_tokens == answer.shared_tokens
        return {"schema": SCHEMA, **self._identity(job, script, contender, answer.turn)} | {
            "meta": _plain(example.meta),
            "prompt_sha256": _prompt_digest(script, answer.turn),
            "prompt_tokens": answer.prompt_tokens,
            "prefill_shared": "prompt" if shared else "context",
            "shared_tokens": answer.shared_tokens,
            "plan": {name: getattr(answer.plan, name) for name in PLAN_FIELDS},
            "kept_tokens": answer.kept_tokens,
            "prediction": text,
            "references": list(example.references),
            "score": float(job.task.score(text, example)),
            "new_tokens": len(answer.ids),
            "ended": answer.ids[-1] in end_ids(self.model),
            "measured": {
                "rows": answer.rows,
                "prefill_s": answer.prefill_s,
                "turn_s": answer.turn_s,
                "decode_s": answer.decode_s,
            },
            **stamp(),
        }


def _key(record: dict[str, Any]) -> str:
    return repr([_plain(record[name]) for name in IDENTITY])


def _prompt_digest(script: Script, turn: int) -> str:
    """Of everything that is the same for all policies: shared tokens, turns so far and golden answers between them."""
    ids = list(script.shared_ids)
    for number, part in enumerate(script.turns[: turn + 1]):
        ids += [*part.ids, *(part.golden_ids if script.mode == "golden" and number < turn else ())]
    return digest(ids)


def _plain(value: Any) -> Any:
    """Values as JSON gives them back, with keys in order; what JSON does not know becomes text."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
