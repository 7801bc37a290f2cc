"""From a name on the command line to tasks. A new task is one file in evals/tasks and one line in TASKS."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from rocketkv.evals.task import Task
from rocketkv.evals.tasks.longbench import METRICS, LongBench
from rocketkv.evals.tasks.multi_file import SCBenchFile
from rocketkv.evals.tasks.multi_retrieval import KeyValues, PrefixSuffix, Tracking
from rocketkv.evals.tasks.multi_shots import ManyShots
from rocketkv.evals.tasks.niah import Needle
from rocketkv.evals.tasks.retrieval_files import LongEvalLines, LostInTheMiddle
from rocketkv.evals.tasks.ruler_file import NEW_TOKENS, RulerFile
from rocketkv.evals.tasks.ruler_needles import RECIPES, RulerNeedles
from rocketkv.evals.tasks.ruler_qa import RulerQuestions
from rocketkv.evals.tasks.ruler_tracking import RulerTracking
from rocketkv.evals.tasks.ruler_words import RulerCommonWords, RulerFrequentWords
from rocketkv.policies.options import convert, options_of

TASKS: dict[str, Callable[..., Task]] = {
    "niah": Needle,
    **{f"ruler/{variant}": partial(RulerNeedles, variant) for variant in RECIPES},
    "ruler/vt": partial(RulerTracking, "vt"),
    "ruler/cwe": partial(RulerCommonWords, "cwe"),
    "ruler/fwe": partial(RulerFrequentWords, "fwe"),
    "ruler/qa_1": partial(RulerQuestions, "qa_1"),
    "ruler/qa_2": partial(RulerQuestions, "qa_2"),
    **{f"ruler-file/{variant}": partial(RulerFile, variant) for variant in NEW_TOKENS},
    **{f"longbench/{variant}": partial(LongBench, variant) for variant in METRICS},
    "multi/kv": KeyValues,
    "multi/prefix-suffix": PrefixSuffix,
    "multi/vt": Tracking,
    "multi/many-shot": ManyShots,
    "scbench": SCBenchFile,
    "lost-in-the-middle": LostInTheMiddle,
    "longeval-lines": LongEvalLines,
}
RESERVED = ("variant",)
"""Fields that the name sets."""


def task_names() -> list[str]:
    """Every task, and every group: the part before a slash stands for all tasks that begin with it."""
    groups = dict.fromkeys(name.split("/")[0] for name in TASKS if "/" in name)
    return [*groups, *TASKS]


def expand(name: str) -> list[str]:
    """The tasks that a name stands for: itself, or its group's. Raises ValueError for an unknown one."""
    found = [task for task in TASKS if task == name or task.startswith(f"{name}/")]
    if not found:
        raise ValueError(f"unknown task {name!r}: did you mean {_near(name, task_names())}?")
    return found


def make_tasks(names: Iterable[str], options: Mapping[str, Any] | None = None) -> list[Task]:
    """The tasks that the names stand for, each with those of the options that it has.

    Args:
        options: fields of the tasks, as values or as text (`depths=5`).

    Raises:
        ValueError: for an unknown name, an option that none of the tasks has, or a value that is ill-typed or out of
            range.
    """
    options = dict(options or {})
    chosen = list(dict.fromkeys(task for name in names for task in expand(name)))
    known = {field for name in chosen for field in option_names(name)}
    for key in options:
        if key not in known:
            raise ValueError(f"no task of {', '.join(chosen)} has an option {key!r}: did you mean {_near(key, known)}?")
    return [make_task(name, **{k: v for k, v in options.items() if k in option_names(name)}) for name in chosen]


def make_task(name: str, **options: Any) -> Task:
    """One task by its full name. Raises ValueError as `make_tasks` does."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}: did you mean {_near(name, TASKS)}?")
    for key in options:
        if key not in option_names(name):
            raise ValueError(f"task {name!r} has no option {key!r}: did you mean {_near(key, option_names(name))}?")
    return TASKS[name](**{key: convert(_class_of(name), key, value) for key, value in options.items()})


def option_names(name: str) -> list[str]:
    """The options of a task, by its full name."""
    return [field for field in options_of(_class_of(name)) if field not in RESERVED]


def describe(task: Task) -> dict[str, Any]:
    """The task as plain values, for a record: its name, and all of its options."""
    fields = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    plain = {key: value if isinstance(value, int | float | str | None) else str(value) for key, value in fields.items()}
    return {"task": task.name} | {key: value for key, value in plain.items() if key not in RESERVED}


def _class_of(name: str) -> Any:
    made = TASKS[name]
    return made.func if isinstance(made, partial) else made


def _near(word: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return " or ".join(difflib.get_close_matches(word, known, n=3, cutoff=0.4) or known) or "none (it has no options)"
