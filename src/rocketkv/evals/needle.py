"""A number planted in real text: texts of a given length, and a table of which policies return the number.

Question and beginning of the answer are worded as in RULER's single-needle task (Hsieh et al., 2024, arXiv:2404.06654).
Run as a program: `python -m rocketkv.evals.needle --tokens 1500 --seeds 20 --policies full,rocketkv --budgets 64,128`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketkv.evals.demo import language_reference

ADJECTIVES = ("amber", "brisk", "calm", "distant", "eager", "frosty", "gentle", "hollow", "ivory", "jolly")
NOUNS = ("anchor", "basket", "candle", "desert", "engine", "forest", "garden", "harbor", "island", "jacket")
NEW_TOKENS = 16


@dataclass(frozen=True)
class Needle:
    """A text with one planted number; `depth` is where, from 0 (the beginning) to 1."""

    text: str
    question: str
    answer_prefix: str
    number: str
    depth: float


def make_needle(seed: int, tokenizer: Any, tokens: int) -> Needle:
    """A text of about `tokens` tokens from Python's language reference, with a 7-digit number at a random depth."""
    draw = random.Random(seed)
    key = f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}"
    number = str(draw.randint(1_000_000, 9_999_999))
    whole = language_reference()
    start = draw.randrange(len(whole) // 2)
    sentences = whole[start : start + 8 * tokens].split(". ")[1:]
    depth = draw.random()
    needle = f"One of the special magic numbers for {key} is: {number}"
    overhead = len(tokenizer(needle)["input_ids"]) + 60  # question, answer prefix and chat template
    ids = tokenizer(". ".join(sentences), add_special_tokens=False)["input_ids"][: tokens - overhead]
    kept = tokenizer.decode(ids).split(". ")
    place = max(1, round(depth * (len(kept) - 1)))
    text = ". ".join([*kept[:place], needle, *kept[place:]])
    question = f"What is the special magic number for {key} mentioned in the provided text?"
    return Needle(
        text, question, f"The special magic number for {key} mentioned in the provided text is", number, depth
    )


def main(argv: list[str] | None = None) -> None:
    """Answer every seed's question under every policy and budget, sharing the reading; print and record a table."""
    import torch

    from rocketkv.hf.models import load_model
    from rocketkv.hf.prompting import prompt_ids
    from rocketkv.hf.together import answer_together
    from rocketkv.hf.warm_up import warm_up
    from rocketkv.policies.registry import make_policy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--policies", default="full,rocketkv")
    parser.add_argument("--budgets", default="64,128,256")
    parser.add_argument("--record", type=Path, help="append one JSON line per seed to this file")
    args = parser.parse_args(argv)
    model, tokenizer = load_model(args.model)
    budgets = [int(budget) for budget in args.budgets.split(",")]
    policies = {}
    for spec in args.policies.split(","):
        name, *settings = spec.split(":")
        options = dict(setting.split("=", 1) for setting in settings)
        for budget in [0] if name == "full" else budgets:
            policies[spec, budget] = make_policy(name, budget, **options)
    warm_up(model, list(policies.values()), tokens=args.tokens + NEW_TOKENS)
    found: dict[tuple[str, int], list[bool]] = {key: [] for key in policies}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        needle = make_needle(seed, tokenizer, args.tokens)
        ids = prompt_ids(tokenizer, needle.text, question=needle.question, answer_prefix=needle.answer_prefix)
        start = time.perf_counter()
        done = answer_together(model, list(policies.values()), torch.tensor([ids]), max_new_tokens=NEW_TOKENS)
        texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in done.new_tokens]
        for key, text in zip(policies, texts, strict=True):
            found[key].append(needle.number in text.replace(",", ""))
        names = [f"{spec}@{budget}" for spec, budget in policies]
        row = {
            "seed": seed,
            "model": args.model,
            "prompt_tokens": len(ids),
            "depth": needle.depth,
            "number": needle.number,
            "found": {name: found[key][-1] for name, key in zip(names, policies, strict=True)},
            "text": dict(zip(names, texts, strict=True)),
        }
        seconds = time.perf_counter() - start
        print(
            f"seed {seed}: {sum(row['found'].values())} of {len(policies)}, {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        if args.record:
            with args.record.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(markdown(found, args.policies.split(","), budgets))


def markdown(found: dict[tuple[str, int], list[bool]], specs: list[str], budgets: list[int]) -> str:
    """How often each policy returned the number, and of those how often Full-KV did too."""
    full = found.get(("full", 0))
    lines = ["| policy | " + " | ".join(map(str, budgets)) + " |", "|---|" + "---|" * len(budgets)]
    for spec in specs:
        cells = []
        for budget in budgets:
            hits = found.get((spec, budget), found.get((spec, 0), []))
            both = "" if full is None else f", {sum(map(min, hits, full))} of Full-KV's {sum(full)}"
            cells.append(f"{sum(hits)} of {len(hits)}{both}")
        lines.append(f"| {spec} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
