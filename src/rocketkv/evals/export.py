"""Records in the layout that the kvpress leaderboard reads: a folder with predictions, metrics and config for a run."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
COLUMNS = ("task", "context_length", "question", "answer", "predicted_answer", "example", "turn", "score")


def export_kvpress(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write predictions.csv, metrics.json and config.yaml into a folder for every length, policy and budget.

    metrics.json maps each task to {"string_match": points of 100} as kvpress does for RULER, rounded to two decimals;
    config.yaml holds what of a record is the same for all rows. Returns the folders.
    """
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(run_name(record), []).append(record)
    folders = []
    for name, rows in runs.items():
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        _write_predictions(rows, target / "predictions.csv")
        (target / "metrics.json").write_text(json.dumps(_metrics(rows), indent=2) + "\n", encoding="utf-8")
        (target / "config.yaml").write_text(_yaml(_config(rows)), encoding="utf-8")
        folders.append(target)
    return folders


def run_name(record: Record) -> str:
    """A folder's name: model, length, protocol, policy and budget, fit for any file system."""
    budget = "" if record["budget_tokens"] is None else f"{record['budget_tokens']}"
    parts = (record["model"], str(record["max_tokens"]), record["protocol"], record["turns"], record["policy"], budget)
    text = "__".join(part for part in parts if part)
    return "".join(letter if letter.isalnum() or letter in "-_.+=" else "-" for letter in text).strip("-.")


def _write_predictions(rows: Sequence[Record], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, COLUMNS)
        out.writeheader()
        for row in rows:
            out.writerow(
                {
                    "task": row["task"],
                    "context_length": row["prompt_tokens"],
                    "question": row["meta"].get("question", ""),
                    "answer": json.dumps(row["references"], ensure_ascii=False),
                    "predicted_answer": row["prediction"],
                    "example": row["example"],
                    "turn": row["turn"],
                    "score": row["score"],
                }
            )


def _metrics(rows: Sequence[Record]) -> dict[str, dict[str, float]]:
    scores: dict[str, list[float]] = {}
    for row in rows:
        scores.setdefault(row["task"], []).append(row["score"])
    return {task: {"string_match": round(100 * sum(found) / len(found), 2)} for task, found in scores.items()}


def _config(rows: Sequence[Record]) -> dict[str, Any]:
    """What all rows share, under kvpress's names where it has them."""
    first = rows[0]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    own = {
        "dataset": "+".join(tasks),
        "data_dir": str(first["max_tokens"]),
        "model": first["model"],
        "press_name": first["policy"],
        "query_aware": first["protocol"] == "inside",
        "seed": first["seed"],
        "budget_tokens": first["budget_tokens"],
        "n": len(rows),
    }
    names = ("dtype", "weights", "protocol", "turns", "policy_options", "commit", "dirty", "versions", "host")
    return own | {name: first[name] for name in names if all(row[name] == first[name] for row in rows)}


def _yaml(values: dict[str, Any]) -> str:
    """Plain values as YAML, each as JSON, which YAML includes."""
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
