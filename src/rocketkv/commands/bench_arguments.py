"""What `rocketkv bench` takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rocketkv.commands.parser import DTYPES, WEIGHTS, names, number, whole, wholes

RECORD = Path("records/bench.jsonl")
SUFFIXES = {"K": 1 << 10, "M": 1 << 20}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command: one subcommand a benchmark."""
    kinds = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    attend = kinds.add_parser("attend", help="one attention layer, one decode step, over random keys")
    attend.add_argument(
        "--shape", type=_shape, default=[8, 4, 128], metavar="G,R,D",
        help="KV heads, query heads for each, head size (default 8,4,128: Llama-3.1-8B)",
    )  # fmt: skip
    attend.add_argument(
        "--selectors", type=names, metavar="S,S", help="baselines (default hsa,quest,sparq,loki,exact-topk; or none)"
    )
    decode = kinds.add_parser("decode", help="a whole model, one decode step, over a cache of random keys")
    decode.add_argument("--gguf", type=Path, metavar="FILE", help="for a row of llama.cpp, if llama_cpp is installed")
    prefill = kinds.add_parser("prefill", help="reading a prompt, and the share of it that eviction takes")
    for kind in (decode, prefill):
        kind.add_argument("--model", default="smollm2", metavar="M", help="as for generate (default %(default)s)")
        kind.add_argument("--policies", type=names, default=["rocketkv"], metavar="P,P", help="(default rocketkv)")
        kind.add_argument(
            "--weights",
            type=_known(WEIGHTS),
            default=["float"],
            metavar="W,W",
            help="float, streamed, int8 (default float)",
        )
    for kind, contexts, budgets in (
        (attend, [32 << 10, 128 << 10], [256, 1024]), (decode, [4 << 10], [256]), (prefill, [4 << 10], [256])
    ):  # fmt: skip
        _add_common(kind, contexts, budgets)
    plot = kinds.add_parser("plot", help="draw step time and tokens/s against context length from the records")
    plot.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help="(default %(default)s)")
    plot.add_argument("--out", type=Path, default=Path("plots"), metavar="DIR", help="(default %(default)s)")


def _add_common(parser: argparse.ArgumentParser, contexts: list[int], budgets: list[int]) -> None:
    parser.add_argument(
        "--contexts", type=_contexts, metavar="N,N",
        help=f"tokens; 32K is 32,768, 128K is 131,072 (default {','.join(f'{n >> 10}K' for n in contexts)})",
    )  # fmt: skip
    parser.add_argument("--budgets", type=wholes(16), default=budgets, metavar="N,N")
    parser.add_argument("--dtypes", type=_known(DTYPES), default=["float32"], metavar="D,D", help="(default float32)")
    parser.add_argument(
        "--backend", default="auto", metavar="B", help="auto (default), reference, cpu (Numba) or triton"
    )
    parser.add_argument("--threads", type=whole(1), metavar="N", help="CPU threads (default: PyTorch's choice)")
    parser.add_argument("--seconds", type=number(0), metavar="S", help="for each row (default 3, quick 0.2)")
    parser.add_argument(
        "--interleave", action=argparse.BooleanOptionalAction, default=True,
        help="rows take turns, so that a disturbance meets all (default); or one row after the other",
    )  # fmt: skip
    parser.add_argument(
        "--cold-mb", type=number(1), metavar="MB", help="touched between two uses of a cache (default 64, quick 4)"
    )
    parser.add_argument("--quick", action="store_true", help="short contexts and few repeats: to see that it runs")
    parser.add_argument(
        "--seed", type=whole(0), default=0, metavar="N", help="of keys and tokens (default %(default)s)"
    )
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help="appended to (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the records as a JSON list")
    parser.set_defaults(default_contexts=contexts)


def _contexts(text: str) -> list[int]:
    counts = []
    for part in names(text):
        factor = SUFFIXES.get(part[-1].upper(), 1)
        counts.append(factor * whole(1)(part[:-1] if factor > 1 else part))
    return counts


def _shape(text: str) -> list[int]:
    sizes = [whole(1)(part) for part in text.split(",")]
    if len(sizes) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form G,R,D, such as 8,4,128")
    return sizes


def _known(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        found = names(text)
        for name in found:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown: choose from {', '.join(allowed)}")
        return found

    return read
