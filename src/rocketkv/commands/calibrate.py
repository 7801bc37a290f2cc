"""Measure on a model what a method needs to know about it: Loki's key bases, DuoAttention's retrieval heads."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketkv.commands.errors import UsageError
from rocketkv.commands.parser import DTYPES, whole
from rocketkv.commands.terminal import Teller, duration

HELP = "measure what Loki or DuoAttention need to know about a model"
MOST_TOKENS = 20_000
PROMPT_TOKENS = 1_500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command: one subcommand a method."""
    methods = parser.add_subparsers(dest="method", metavar="METHOD", required=True)
    loki = methods.add_parser("loki", help="principal components of a model's keys, from a text")
    loki.add_argument("--text", required=True, metavar="FILE", help="a UTF-8 text like those that will be read")
    loki.add_argument("--out", type=Path, metavar="FILE", help="(default: loki.safetensors in the model's folder)")
    loki.add_argument(
        "--tokens", type=whole(1), default=MOST_TOKENS, metavar="N", help="read at most so many (default %(default)s)"
    )
    duo = methods.add_parser("duo", help="DuoAttention's head pattern, from passkeys in generated noise")
    duo.add_argument("--out", type=Path, metavar="DIR", help="(default: duoattention in the model's folder)")
    duo.add_argument(
        "--tokens", type=whole(1), default=PROMPT_TOKENS, metavar="N", help="of the noise (default %(default)s)"
    )
    duo.add_argument("--sink", type=whole(0), default=128, metavar="N", help="sink tokens (default %(default)s)")
    duo.add_argument("--recent", type=whole(1), default=256, metavar="N", help="newest tokens (default %(default)s)")
    duo.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of the noise (default %(default)s)")
    for method in (loki, duo):
        method.add_argument(
            "--model", default="smollm2", metavar="M", help="a folder, a .gguf file, a hub id or smollm2 (default)"
        )
        method.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default %(default)s)")
        method.add_argument("--threads", type=whole(1), metavar="N", help="CPU threads (default: PyTorch's choice)")


def run(args: argparse.Namespace) -> None:
    """Calibrate, write the file, and print where it lies."""
    {"loki": _loki, "duo": _duo}[args.method](args, Teller(quiet=False))


def _loki(args: argparse.Namespace, teller: Teller) -> None:
    from rocketkv.hf.calibrate_loki import FILE_NAME, calibrate_loki, save_components
    from rocketkv.hf.prompting import read_text

    text = read_text(args.text)
    model, tokenizer = _load(args, teller)
    out = args.out or _model_folder(model, "--out FILE") / FILE_NAME
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder: give a file to write")
    ids = list(tokenizer(text)["input_ids"])
    if len(ids) > args.tokens:
        teller.note(f"the text has {len(ids):,} tokens; the first {args.tokens:,} are read (--tokens)")
    found = calibrate_loki(model, ids[: args.tokens], on_chunk=_progress(teller))
    save_components(found, out, model_name=args.model, text=text)
    quarter = found.bases.shape[-1] // 4
    share = 100 * float(found.captured(quarter).mean())
    teller.note(f"{quarter} of {4 * quarter} dimensions hold {share:.1f} % of the keys' energy, mean over heads")
    print(out)


def _duo(args: argparse.Namespace, teller: Teller) -> None:
    from rocketkv.hf.calibrate_duo import FOLDER_NAME, calibrate_duo, save_pattern

    model, tokenizer = _load(args, teller)
    out = args.out or _model_folder(model, "--out DIR") / FOLDER_NAME
    teller.note(f"reading about {args.tokens:,} tokens of noise")
    pattern = calibrate_duo(
        model,
        tokenizer,
        prompt_tokens=args.tokens,
        sink_tokens=args.sink,
        recent_tokens=args.recent,
        seed=args.seed,
        on_prompt_layer=teller.reading(args.tokens),
    )
    save_pattern(pattern, out, model_name=args.model)
    values = [value for row in pattern.values for value in row]
    full = sum(value >= 0.5 for value in values)
    teller.note(f"{full} of {len(values)} KV heads are retrieval heads at threshold 0.5")
    print(out)


def _load(args: argparse.Namespace, teller: Teller) -> tuple[Any, Any]:
    import torch

    from rocketkv.hf.attach import check_model
    from rocketkv.hf.bars import only_errors
    from rocketkv.hf.models import load_model

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    only_errors()
    model, tokenizer = load_model(args.model, dtype=getattr(torch, args.dtype), progress=teller.note)
    check_model(model)
    return model, tokenizer


def _model_folder(model: Any, option: str) -> Path:
    """Where the model lies. Raises UsageError for one that came from the hub."""
    folder = Path(model.config._name_or_path)
    if not folder.is_dir():
        raise UsageError(f"{model.config._name_or_path} has no folder of its own here: give {option}")
    return folder


def _progress(teller: Teller) -> Callable[[int, int], None]:
    """Tokens read, rate and time left, as a line after each chunk but the last."""
    start_s = time.perf_counter()

    def tell(done: int, total: int) -> None:
        if done < total:
            rate = done / max(time.perf_counter() - start_s, 1e-9)
            left = duration((total - done) / rate)
            teller.note(f"read {done:,} of {total:,} tokens, {rate:,.0f} tokens/s, {left} left")

    return tell
