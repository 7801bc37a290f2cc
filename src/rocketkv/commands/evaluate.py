"""Score policies at budgets on tasks: each prompt is read once for all of them, and every score is a record."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketkv.commands.errors import UsageError
from rocketkv.commands.parser import add_model_arguments, names, setting, whole, wholes
from rocketkv.commands.sweep_progress import SweepProgress
from rocketkv.commands.terminal import Teller

if TYPE_CHECKING:
    from rocketkv.evals.contenders import Contender
    from rocketkv.evals.runner import Job

HELP = "score policies at budgets on tasks, with a record for every answer"
DEFAULT_TASKS = ["niah"]
SHORTCUTS = ("depths", "haystack", "data")
"""Options of tasks that have an argument of their own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_model_arguments(parser)
    group = parser.add_argument_group("tasks")
    group.add_argument(
        "--task", type=names, default=DEFAULT_TASKS, metavar="T,T",
        help="niah, ruler, ruler/vt, longbench, multi, ...; a group stands for all of its tasks (default niah)",
    )  # fmt: skip
    group.add_argument(
        "--lengths", type=wholes(64), default=[1024], metavar="N,N",
        help="tokens of prompt and answer together, at most (default 1024)",
    )  # fmt: skip
    group.add_argument(
        "--n", type=whole(1), metavar="N", help="examples for each task and length (default: the task's)"
    )
    group.add_argument("--seed", type=whole(0), default=42, metavar="N", help="of the examples (default %(default)s)")
    group.add_argument("--depths", metavar="N", help="of niah: how many, evenly from the beginning to the end")
    group.add_argument("--haystack", metavar="FILE", help="noise, pydoc, a text file or a folder of them")
    group.add_argument(
        "--data",
        metavar="PATH",
        help="file or folder of a task that reads its rows, or hf://datasets/OWNER/NAME[@REVISION][/PATH]",
    )
    group.add_argument("--set", dest="settings", type=setting, action="append", default=[], metavar="KEY=VALUE",
                       help="an option of a task; repeatable")  # fmt: skip
    group.add_argument(
        "--protocol", choices=("inside", "after"), default="inside",
        help="the question inside the prompt that is compressed (default), or read after compression",
    )  # fmt: skip
    group.add_argument(
        "--turns", choices=("golden", "own"), default="golden",
        help="what later turns see as earlier answers: the references (default), or what the policy said",
    )  # fmt: skip
    _add_policy_arguments(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of records; a sweep goes on in it"
    )
    parser.add_argument(
        "--report", action=argparse.BooleanOptionalAction, default=True,
        help="write plots and a Markdown report into the folder at the end (default)",
    )  # fmt: skip


def _add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("policies")
    group.add_argument(
        "--policy", type=names, default=["all"], metavar="P,P",
        help="names, with options behind colons (rocketkv:split=0.5); all: every method that needs no file (default)",
    )  # fmt: skip
    group.add_argument("--budgets", type=wholes(1), default=[256], metavar="N,N", help="tokens (default 256)")
    group.add_argument(
        "--planned-new-tokens", type=whole(0), default=0, metavar="N",
        help="generation length that the plan counts on (default %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-cache-bytes", type=whole(1), metavar="N",
        help="of all rows that decode together; more policies than fit take turns (default: half of what is free)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Run what has no record yet, and print the table of all."""
    from rocketkv.evals.tables import briefly_named, lines_of, markdown

    teller = Teller(quiet=False)
    contenders = contenders_from(args, teller)
    if args.data is not None and args.data.startswith("hf://"):
        teller.note(f"data: {args.data}, fetched where it is not in the hub's local cache")
    jobs = jobs_from(args)
    model, tokenizer = open_model(args, teller)

    from rocketkv.evals.answering import Settings
    from rocketkv.evals.runner import RECORDS_NAME, Origin, sweep

    origin = Origin(args.model, args.dtype, args.weights, args.seed, args.protocol, args.turns)
    args.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(args.planned_new_tokens, args.max_cache_bytes, args.out, args.backend)
    progress = SweepProgress()
    try:
        records = sweep(model, tokenizer, jobs, contenders, args.out, origin, settings, progress)
    except KeyboardInterrupt:
        progress.end()
        teller.note("stopped: what was scored is kept, the same command goes on from there")
        raise
    progress.end()
    print(markdown(lines_of(briefly_named(records))))
    if args.report:
        _report(args.out, records, teller)
    teller.note(f"records: {args.out / RECORDS_NAME}")


def _report(folder: Path, records: list[dict[str, Any]], teller: Teller) -> None:
    from rocketkv.evals.plots import PlotsMissingError
    from rocketkv.evals.report import write_report

    try:
        teller.note(f"report: {write_report(records, folder)}")
    except PlotsMissingError as error:
        teller.note(f"no report: {error}")


def contenders_from(args: argparse.Namespace, teller: Teller) -> list[Contender]:
    """The policies at the budgets. Raises UsageError for what no policy knows or takes."""
    from rocketkv.evals.contenders import ALL, make_contenders, needing_files

    try:
        contenders = make_contenders(args.policy, args.budgets)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if ALL in args.policy and (missing := needing_files()):
        teller.note(f"all leaves out {', '.join(missing)}: each needs a file, from `rocketkv calibrate`")
    return contenders


def jobs_from(args: argparse.Namespace) -> list[Job]:
    """The tasks at the lengths. Raises UsageError for an unknown task, option or value."""
    from rocketkv.evals.registry import make_tasks
    from rocketkv.evals.runner import Job

    given = {name: getattr(args, name) for name in SHORTCUTS if getattr(args, name) is not None}
    try:
        tasks = make_tasks(args.task, given | dict(args.settings))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return [Job(task, length, args.n) for task in tasks for length in args.lengths]


def open_model(args: argparse.Namespace, teller: Teller) -> tuple[Any, Any]:
    """The model and the tokenizer that `args` name. Raises ModelError or BackendError."""
    import torch

    from rocketkv.hf.attach import check_model
    from rocketkv.hf.bars import only_errors
    from rocketkv.hf.models import load_model
    from rocketkv.ops.dispatch import backend_names

    backend_names(args.backend)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    only_errors()
    model, tokenizer = load_model(
        args.model, dtype=getattr(torch, args.dtype), weights=args.weights, progress=teller.note
    )
    check_model(model)
    return model, tokenizer
