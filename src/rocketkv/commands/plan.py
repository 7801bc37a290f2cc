"""What a budget keeps and reads for a context: arithmetic only, no model is loaded."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketkv.budget import (
    LEAST_SHARE,
    Plan,
    held_pairs,
    make_plan,
    step_pairs,
    storage_derived,
    storage_paper,
    traffic,
)
from rocketkv.commands.errors import UsageError
from rocketkv.commands.parser import DEFAULT_BUDGET_TOKENS, DTYPES, number, whole
from rocketkv.commands.terminal import megabytes

if TYPE_CHECKING:
    from rocketkv.hf.shape import ModelShape

HELP = "what a budget keeps and reads, by arithmetic alone"
ELEMENT_BYTES = {name: 4 if name == "float32" else 2 for name in DTYPES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("--context", type=whole(1), required=True, metavar="N", help="tokens of the prompt")
    parser.add_argument("--new", type=whole(0), default=0, metavar="N", help="planned new tokens (default %(default)s)")
    parser.add_argument(
        "--budget", type=whole(1), default=DEFAULT_BUDGET_TOKENS, metavar="N", help="(default %(default)s)"
    )
    parser.add_argument(
        "--window", type=whole(1), default=32, metavar="N", help="observation window (default %(default)s)"
    )
    parser.add_argument("--split", type=number(0, 1), metavar="R", help="instead of the adaptive split")
    parser.add_argument(
        "--estimate-share", type=number(LEAST_SHARE, 1 - LEAST_SHARE), default=0.5, metavar="E",
        help="of the budget, for choosing what is read (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--model", metavar="M", help="take the sizes from a folder's config.json, or smollm2's")
    parser.add_argument("--head-dim", type=whole(1), metavar="D", help="size of a key")
    parser.add_argument("--kv-heads", type=whole(1), metavar="G", help="KV heads of a layer, for bytes")
    parser.add_argument("--layers", type=whole(1), metavar="N", help="full-attention layers, for bytes")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of the cache, for bytes (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    """Print the plan with its storage and traffic. Raises UsageError or ModelError."""
    shape = None if args.model is None else model_shape(args.model)
    head_dim = args.head_dim or (shape.head_dim if shape else None)
    if head_dim is None:
        raise UsageError("the size of a key is needed: give --head-dim or --model")
    kv_heads = args.kv_heads or (shape.kv_heads if shape else None)
    layers = args.layers or (shape.full_layers if shape else None)
    try:
        plan = make_plan(args.context, budget_tokens=args.budget, head_dim=head_dim, new_tokens=args.new,
                         window_tokens=args.window, split=args.split, estimate_share=args.estimate_share)  # fmt: skip
    except ValueError as error:
        raise UsageError(str(error)) from None
    heads = kv_heads * layers if kv_heads and layers else None
    result = figures(plan, heads, ELEMENT_BYTES[args.dtype])
    print(json.dumps(result) if args.json else in_words(plan, result))


def model_shape(model: str) -> ModelShape:
    """The sizes of a model that lies in a folder here. Raises ModelError or UsageError."""
    from rocketkv.hf import known, store
    from rocketkv.hf.shape import shape_in_folder

    path = Path(model).expanduser()
    if model in known.KNOWN_MODELS:
        source = known.KNOWN_MODELS[model]
        path = store.imported_path(Path(source.gguf_name).stem, source.sha256)
        if not path.is_dir():
            raise UsageError(f"{model} is not imported yet: run `rocketkv import {model}`, or give --head-dim")
    elif not path.is_dir():
        raise UsageError(f"{model} is not a folder here: a plan reads a folder's config.json; give that, or --head-dim")
    return shape_in_folder(path)


def figures(plan: Plan, heads: int | None, element_bytes: int) -> dict[str, Any]:
    """The plan as plain values. `heads` is KV heads times layers; without it there are no bytes.

    Storage and traffic are shares of a full cache's. `storage_held` and `traffic_step` follow from the plan's
    whole numbers, the others from formulas in c and r.
    """
    c, r, total = plan.shrink_factor, plan.split, plan.total_tokens
    result: dict[str, Any] = {
        "context_tokens": plan.context_tokens,
        "new_tokens": plan.new_tokens,
        "budget_tokens": plan.budget_tokens,
        "head_dim": plan.head_dim,
        "dense": plan.dense,
        "shrink_factor": c,
        "split": r,
        "kept_tokens": plan.kept_tokens,
        "capacity_tokens": plan.capacity_tokens,
        "page_tokens": plan.page_tokens,
        "rank": plan.rank,
        "read_tokens": plan.read_tokens,
        "floors": list(plan.floors),
        "storage_paper": storage_paper(c, r),
        "storage_derived": storage_derived(c, r),
        "storage_held": held_pairs(plan) / total,
        "traffic": traffic(c),
        "traffic_step": step_pairs(plan) / total,
    }
    if heads is not None:
        pair_bytes = heads * 2 * plan.head_dim * element_bytes
        pairs = {"cache_bytes": held_pairs(plan), "full_cache_bytes": total, "step_bytes": step_pairs(plan)}
        result |= {key: int(count * pair_bytes) for key, count in pairs.items()}
    return result


def in_words(plan: Plan, result: dict[str, Any]) -> str:
    """The same for people."""
    if plan.dense:
        head = (
            f"dense: {plan.total_tokens:,} tokens fit in the budget of {plan.budget_tokens:,}, "
            "so everything is kept and read"
        )
    else:
        head = (
            f"kept {plan.kept_tokens:,} of {plan.context_tokens:,} tokens "
            f"(capacity {plan.capacity_tokens:,}), page {plan.page_tokens}, "
            f"rank {plan.rank} of {plan.head_dim}, read {plan.read_tokens:,}"
        )
    lines = [
        head,
        f"shrink factor {plan.shrink_factor:.2f}, split {plan.split:.3f}",
        f"storage {result['storage_held']:.4f} of a full cache's ({result['storage_derived']:.4f} by "
        f"the derived formula, {result['storage_paper']:.4f} by the paper's)",
        f"traffic {result['traffic_step']:.4f} of a full cache's ({result['traffic']:.4f} by the formula)",
    ]
    if plan.floors:
        lines.append(f"tokens kept are at the least that the {' and the '.join(plan.floors)} allows")
    if "cache_bytes" in result:
        lines.append(
            f"cache {megabytes(result['cache_bytes'])} instead of {megabytes(result['full_cache_bytes'])}, "
            f"{megabytes(result['step_bytes'])} read per step"
        )
    return "\n".join(lines)
