"""Turn the records of sweeps into plots and a Markdown report."""

from __future__ import annotations

import argparse
from pathlib import Path

from rocketkv.commands.errors import UsageError
from rocketkv.commands.terminal import Teller

HELP = "plots and a Markdown report from the records of sweeps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "records", type=Path, nargs="+", metavar="RECORDS", help="files of records, or the folders that eval wrote"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for report.md and the PNGs")
    parser.add_argument("--bench", type=Path, metavar="FILE", help="records of `rocketkv bench`: adds plots of speed")
    parser.add_argument(
        "--kvpress", action="store_true", help="also write predictions.csv, metrics.json and config.yaml of each run"
    )


def run(args: argparse.Namespace) -> None:
    """Write the report and say where it is."""
    from rocketkv.evals.export import export_kvpress
    from rocketkv.evals.plots import PlotsMissingError
    from rocketkv.evals.report import write_report
    from rocketkv.evals.runner import RECORDS_NAME, SCHEMA
    from rocketkv.records import read_records

    found = []
    for path in args.records:
        file = path / RECORDS_NAME if path.is_dir() else path
        if not file.is_file():
            raise UsageError(f"{file} does not exist: give a file of records, or the folder of a sweep")
        found += [record for record in read_records(file) if record.get("schema") == SCHEMA]
    if not found:
        raise UsageError(f"no record of a sweep in {', '.join(map(str, args.records))}: run `rocketkv eval` first")
    try:
        report = write_report(found, args.out, extra=_speed_plots(args))
    except PlotsMissingError as error:
        raise UsageError(str(error)) from None
    teller = Teller(quiet=False)
    if args.kvpress:
        teller.note(f"wrote {len(export_kvpress(found, args.out / 'kvpress'))} runs to {args.out / 'kvpress'}")
    print(report)


def _speed_plots(args: argparse.Namespace) -> list[Path]:
    if args.bench is None:
        return []
    from rocketkv.bench.plots import plot_records
    from rocketkv.records import read_records

    if not args.bench.is_file():
        raise UsageError(f"{args.bench} does not exist: `rocketkv bench` writes it")
    return plot_records(read_records(args.bench), args.out)
