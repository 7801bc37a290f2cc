"""Real rows of public benchmarks, not part of this repository: read where they are, or skipped."""

import os
from pathlib import Path

import pytest

PLACES = [Path(__file__).resolve().parents[3] / "shared" / "data"]


def benchmark_data(name: str) -> Path:
    """The folder or file `name` under $ROCKETKV_EVAL_DATA, or under ../shared/data beside the checkout."""
    told = os.environ.get("ROCKETKV_EVAL_DATA")
    for place in [Path(told)] if told else PLACES:
        if (place / name).exists():
            return place / name
    pytest.skip(f"no benchmark rows {name}: set ROCKETKV_EVAL_DATA to a folder that has them")
