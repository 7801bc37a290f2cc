"""Force one answer on several policies and show how much of the full cache's attention each of them reads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rocketkv.commands.compare import policies_from
from rocketkv.commands.errors import UsageError
from rocketkv.commands.parser import (
    DEFAULT_BUDGET_TOKENS,
    add_model_arguments,
    add_prompt_arguments,
    names,
    setting,
    whole,
)
from rocketkv.commands.running import open_session, prompt_text
from rocketkv.commands.terminal import Teller

if TYPE_CHECKING:
    from rocketkv.evals.diagnostics import Diagnosis

HELP = "recall, attention mass and distinct tokens of policies on one prompt, as arrays and plots"
HEADS = ("policy", "tokens read", "recall", "worst layer", "attention mass", "worst layer")
ARRAYS_NAME = "diagnosis.npz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    group = parser.add_argument_group("diagnosis")
    group.add_argument(
        "--policies", type=names, default=["rocketkv", "snapkv", "quest"], metavar="P,P",
        help="(default rocketkv,snapkv,quest)",
    )  # fmt: skip
    group.add_argument(
        "--budget", type=whole(1), default=DEFAULT_BUDGET_TOKENS, metavar="N", help="(default %(default)s)"
    )
    group.add_argument("--set", dest="settings", type=setting, action="append", default=[], metavar="KEY=VALUE",
                       help="an option of a policy; repeatable")  # fmt: skip
    group.add_argument("--top", type=whole(1), metavar="N", help="size of the exact top set (default: the budget)")
    group.add_argument(
        "--max-new-tokens", type=whole(1), default=32, metavar="N",
        help="of the full cache's answer, which is forced on all (default %(default)s)",
    )  # fmt: skip
    group.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder for {ARRAYS_NAME} and the PNGs")
    parser.set_defaults(planned_new_tokens=0, temperature=0.0, seed=0)


def run(args: argparse.Namespace) -> None:
    """Write arrays and plots, and print a table."""
    from rocketkv.evals.plots import PlotsMissingError, check_plots

    teller = Teller(quiet=False)
    text = prompt_text(args)
    policies = policies_from(args.policies, [args.budget], dict(args.settings))
    if any(policy.whole for policy in policies):
        raise UsageError("--policies: the full cache is what all others are compared with, leave it out")
    try:
        check_plots()
    except PlotsMissingError as error:
        raise UsageError(str(error)) from None
    args.out.mkdir(parents=True, exist_ok=True)
    session = open_session(args, teller, text)
    session.announce(policies)

    import torch

    from rocketkv.evals.diagnostics import diagnose
    from rocketkv.evals.plots import plot_all

    found = diagnose(
        session.model,
        policies,
        torch.tensor([session.ids], device=session.model.device),
        new_tokens=session.new_tokens(),
        stop_ids=stop_ids(session.model),
        top_tokens=args.top,
        labels=[f"{policy.name} {policy.budget_tokens}" for policy in policies],
        backend=args.backend,
        on_prompt_layer=teller.reading(len(session.ids)),
    )
    found.save(args.out / ARRAYS_NAME)
    plots = plot_all(found, args.out)
    teller.note(f"forced answer: {session.tokenizer.decode(found.answer_ids, skip_special_tokens=True)!r}")
    print(summary(found))
    teller.note("wrote " + ", ".join(str(path) for path in [args.out / ARRAYS_NAME, *plots]))


def summary(found: Diagnosis) -> str:
    """A line a policy: tokens read per step and KV head, recall and mass, each as the mean and in the worst layer."""
    rows: list[tuple[str, ...]] = [HEADS]
    for name, recall, mass, read in zip(found.policies, found.recall, found.mass, found.read_tokens, strict=True):
        numbers = (recall.mean(), recall.mean((0, 2)).min(), mass.mean(), mass.mean((0, 2)).min())
        rows.append((name, f"{read.mean():,.1f}", *(f"{number:.3f}" for number in numbers)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    steps, layers, heads = found.distinct.shape
    top = "/".join(str(tokens) for tokens in dict.fromkeys(found.top_tokens))
    lines.append(
        f"mean over {steps} steps, {layers} layers and {heads} KV heads of one prompt of {found.prompt_tokens:,} "
        f"tokens; recall is of the exact top {top}"
    )
    lines.append(
        f"over the whole answer, the exact top {found.oracle_tokens} names {found.distinct[-1].mean():,.0f} "
        "distinct tokens per KV head"
    )
    return "\n".join(lines)


def stop_ids(model: object) -> list[int]:
    """The tokens that end an answer of this model."""
    end = model.generation_config.eos_token_id  # type: ignore[attr-defined]
    return [] if end is None else [end] if isinstance(end, int) else list(end)
