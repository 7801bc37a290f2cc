"""Time a decode step or a prefill here, beside PyTorch and against this machine's own limits; every row is recorded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketkv.commands.bench_arguments import add_arguments
from rocketkv.commands.compare import policies_from
from rocketkv.commands.errors import UsageError
from rocketkv.commands.terminal import Teller, megabytes

if TYPE_CHECKING:
    from rocketkv.bench.decode import Variant
    from rocketkv.bench.machine import Limits
    from rocketkv.bench.timing import Row, Times
    from rocketkv.policies.base import Policy

__all__ = ["HELP", "add_arguments", "run"]

HELP = "time decode steps and prefills beside PyTorch, as shares of this machine's limits"
LEAST, QUICK_LEAST = 5, 3
QUICK_CONTEXTS = {"attend": [2048], "decode": [512], "prefill": [512]}


def run(args: argparse.Namespace) -> None:
    """Measure the machine, then the rows; print a table or JSON, and append the records."""
    if args.bench == "plot":
        _plot(args)
        return
    import torch

    from rocketkv.bench.machine import describe_machine, header, measure_limits
    from rocketkv.bench.report import table
    from rocketkv.bench.timing import COLD_BYTES
    from rocketkv.ops.dispatch import backend_names

    backend_names(args.backend)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if args.cold_mb is None:
        args.cold_mb = 4.0 if args.quick else COLD_BYTES / 1e6
    teller = Teller(quiet=args.json)
    limits = measure_limits(quick=args.quick)
    for line in header(describe_machine(), limits, args.cold_mb * 1e6):
        teller.note(line)
    results, records = {"attend": _attend, "decode": _decode, "prefill": _prefill}[args.bench](args, teller, limits)
    print(json.dumps(records, ensure_ascii=False) if args.json else table(results))
    teller.note(f"{len(records)} records appended to {args.record}")


def contexts_of(args: argparse.Namespace) -> list[int]:
    """The context lengths that were asked for, or the benchmark's own."""
    found: list[int] = args.contexts or (QUICK_CONTEXTS[args.bench] if args.quick else args.default_contexts)
    return found


Found = tuple[list[Any], list[dict[str, Any]]]


def _attend(args: argparse.Namespace, teller: Teller, limits: Limits) -> Found:
    import torch

    from rocketkv.bench.attend import SELECTORS, AttendCase, rows_of
    from rocketkv.bench.filled import Shape

    selectors = SELECTORS if args.selectors is None else [name for name in args.selectors if name != "none"]
    if unknown := set(selectors).difference(SELECTORS):
        raise UsageError(f"unknown selector {unknown.pop()!r}: choose from {', '.join(SELECTORS)}, or none")
    found: Found = ([], [])
    for dtype in args.dtypes:
        for context in contexts_of(args):
            case = AttendCase(Shape(*args.shape), context, getattr(torch, dtype), args.budgets, args.cold_mb * 1e6,
                              args.seed, args.backend)  # fmt: skip
            teller.note(f"timing {case.group}")
            rows = rows_of(case, selectors)
            _take(found, args, limits, rows, _measured(args, rows))
    return found


def _decode(args: argparse.Namespace, teller: Teller, limits: Limits) -> Found:
    import torch

    from rocketkv.bench.decode import DecodeCase, rows_of
    from rocketkv.bench.llama import llama_row
    from rocketkv.bench.record import peak_rss_bytes

    policies = _policies(args)
    if args.gguf is not None and not args.gguf.is_file():
        raise UsageError(f"--gguf {args.gguf}: no such file")
    variants = _variants(args, teller)
    found: Found = ([], [])
    for context in contexts_of(args):
        case = DecodeCase(context, policies, args.seed, args.backend)
        teller.note(f"filling caches of {context:,} tokens")
        rows = [row for variant in variants for row in rows_of(variant, case)]
        times = _measured(args, rows)
        if args.gguf is not None:
            row, taken = llama_row(args.gguf, context, rows[0].group, threads=torch.get_num_threads(), seed=args.seed)
            rows.append(row)
            times.append(taken)
        order = sorted(range(len(rows)), key=lambda place: rows[place].group)
        _take(found, args, limits, [rows[place] for place in order], [times[place] for place in order])
    if peak := peak_rss_bytes():
        teller.note(f"peak memory of this process, all variants and caches together: {megabytes(peak)}")
    return found


def _prefill(args: argparse.Namespace, teller: Teller, limits: Limits) -> Found:
    from rocketkv.bench.prefill import add_stage_share, rows_of

    policies, found = _policies(args), ([], [])  # type: tuple[list[Policy], Found]
    for variant in _variants(args, teller):
        for context in contexts_of(args):
            teller.note(f"reading {context:,} tokens")
            pairs = rows_of(variant, context, policies, seed=args.seed, backend=args.backend)
            times = _measured(args, [row for row, _ in pairs])
            for (row, clock), taken in zip(pairs, times, strict=True):
                if clock is not None and taken is not None:
                    add_stage_share(row, clock, taken.p50_ms)
            _take(found, args, limits, [row for row, _ in pairs], times)
    return found


def _measured(args: argparse.Namespace, rows: Sequence[Row]) -> list[Times | None]:
    from rocketkv.bench.timing import measure

    seconds = args.seconds if args.seconds is not None else (0.2 if args.quick else 3.0)
    for row in rows:
        row.settings["interleave"] = args.interleave
    return measure(rows, seconds=seconds, least=QUICK_LEAST if args.quick else LEAST, interleave=args.interleave)


def _take(
    found: Found, args: argparse.Namespace, limits: Limits, rows: Sequence[Row], times: Sequence[Times | None]
) -> None:
    """Add results and records to what was found, and append the records at once: a later failure loses none."""
    from rocketkv.bench.record import lines_of, results_of
    from rocketkv.records import append_record

    results = results_of(rows, times, limits)
    records = lines_of(args.bench, results, limits, seed=args.seed)
    for record in records:
        append_record(args.record, record)
    found[0].extend(results)
    found[1].extend(records)


def _policies(args: argparse.Namespace) -> list[Policy]:
    return [policy for policy in policies_from(args.policies, args.budgets, {}) if policy.name != "full"]


def _variants(args: argparse.Namespace, teller: Teller) -> list[Variant]:
    import torch

    from rocketkv.bench.decode import Variant
    from rocketkv.hf.attach import check_model
    from rocketkv.hf.bars import only_errors
    from rocketkv.hf.models import load_model

    only_errors()
    variants = []
    for dtype in args.dtypes:
        for weights in args.weights:
            model, _ = load_model(args.model, dtype=getattr(torch, dtype), weights=weights, progress=teller.note)
            check_model(model)
            variants.append(Variant(model, Path(args.model).name, weights))
    return variants


def _plot(args: argparse.Namespace) -> None:
    from rocketkv.bench.plots import plot_records
    from rocketkv.records import RecordError, read_records

    if not args.record.is_file():
        raise UsageError(f"--record {args.record}: no such file; `rocketkv bench attend` makes one")
    try:
        written = plot_records(read_records(args.record), args.out)
    except RecordError as error:
        raise UsageError(str(error)) from None
    except ImportError:
        raise UsageError("plots need matplotlib: pip install 'rocketkv[plots]'") from None
    if not written:
        raise UsageError(f"{args.record} holds no timed step: run `rocketkv bench attend` or `decode` first")
    print("\n".join(map(str, written)))
