"""Made-up records of sweeps, for tables and plots."""

import random
from typing import Any

SPECS = (
    "full",
    "rocketkv",
    "rocketkv-mt",
    "snapkv",
    "adakv",
    "streamingllm",
    "tova",
    "exact-topk",
    "quest",
    "sparq",
    "hsa",
)


def made_up_record(policy: str, budget: int | None, example: str, score: float, **changes: Any) -> dict[str, Any]:
    """One record with every field that tables, exports and plots read."""
    name, *options = policy.split(":")
    return {
        "schema": "rocketkv-eval-1", "model": "own/tiny", "dtype": "float32", "weights": "float", "task": "niah",
        "max_tokens": 1024, "seed": 42, "protocol": "inside", "turns": None, "planned_new_tokens": 0,
        "example": example, "turn": 0, "policy": policy, "policy_name": name,
        "policy_options": dict(option.split("=") for option in options), "budget_tokens": budget, "score": score,
        "prediction": 'a, "b"\nc', "references": ["a|b"], "prompt_tokens": 1000, "kept_tokens": float(budget or 1000),
        "meta": {}, "commit": "abc", "dirty": False, "versions": {"torch": "2"}, "host": {"cpu": "A CPU", "cores": 2},
    } | changes  # fmt: skip


def made_up_sweep(
    *, tasks: tuple[str, ...], lengths: tuple[int, ...], budgets: tuple[int, ...], specs: tuple[str, ...] = SPECS,
    depths: int = 5, repeats: int = 2,
) -> list[dict[str, Any]]:  # fmt: skip
    """Records whose scores rise with the budget and fall with the length."""
    draw = random.Random(0)
    records = []
    for task in tasks:
        for length in lengths:
            for index in range(depths * repeats):
                for place, spec in enumerate(specs):
                    for budget in (None,) if spec == "full" else budgets:
                        chance = 0.95 if budget is None else min(0.9, (budget / length * 4) ** (0.2 + 0.1 * place))
                        kept = length if budget is None else min(length, budget * (1 + place % 3 * 4))
                        meta = {"depth": index % depths / max(depths - 1, 1)} if task == "niah" else {}
                        records.append(
                            made_up_record(
                                spec,
                                budget,
                                f"{task}-{length}-{index}",
                                float(draw.random() < chance),
                                task=task,
                                max_tokens=length,
                                kept_tokens=float(kept),
                                meta=meta,
                            )
                        )
    return records
