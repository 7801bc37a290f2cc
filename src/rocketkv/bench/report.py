"""Results as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rocketkv.bench.record import Result

HEADS = ("", "median ms", "p20-p80", "n", "per second", "GB/s", "of limit", "x baseline")


def table(results: Sequence[Result]) -> str:
    """One block a group. The baseline is marked; skipped rows say why."""
    lines: list[tuple[str, ...] | str] = [HEADS]
    group = ""
    for result in results:
        if result.row.group != group:
            group = result.row.group
            lines.append(f"\n{group}")
        lines.append(_cells(result))
    rows = [line for line in lines if not isinstance(line, str)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    text = [line if isinstance(line, str) else _aligned(line, widths) for line in lines]
    text += [f"{result.row.name}: skipped, {result.row.skipped}" for result in results if result.row.skipped]
    return "\n".join(text)


def _aligned(row: tuple[str, ...], widths: Sequence[int]) -> str:
    cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def _cells(result: Result) -> tuple[str, ...]:
    row, times = result.row, result.times
    shown = row.settings.get("shown", "")
    name = f"  {row.name}" + (f" ({shown})" if shown else "")
    if times is None:
        return (name, "skipped", *[""] * (len(HEADS) - 2))
    rate = f"{row.named_bytes / times.p50_ms / 1e6:.2f}" if row.named_bytes else "-"
    ratio = "-" if result.ratio is None else f"{result.ratio:.3g}"
    return (
        name,
        f"{times.p50_ms:.3f}",
        f"{times.p20_ms:.3f}-{times.p80_ms:.3f}",
        str(times.n),
        f"{1e3 / times.p50_ms:.1f}",
        rate,
        "-" if result.share is None else f"{100 * result.share:.0f} %",
        f"baseline {ratio}" if result.baseline == row.name else ratio,
    )
