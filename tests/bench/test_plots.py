"""Which records make which curve."""

from typing import Any

from rocketkv.bench.plots import curves


def record(ms: float, context: int, **settings: Any) -> dict[str, Any]:
    settings = {"context_tokens": context} | settings
    group = f"8 x 4 x 128, float32, {context:,} tokens"
    return {"bench": "attend", "group": group, "row": "dense kernel", "p50_ms": ms, "settings": settings}


def test_colder_caches_and_rows_one_after_the_other_are_pictures_of_their_own() -> None:
    found = curves(
        [
            record(9.0, 1024, cold_bytes=64e6, interleave=True),
            record(1.0, 1024),  # of before this was told: the defaults; the later one counts
            record(2.0, 2048, cold_bytes=64e6, interleave=True),
            record(3.0, 1024, cold_bytes=4e8, interleave=True),
            record(4.0, 1024, cold_bytes=64e6, interleave=False),
        ]
    )
    shape = "8 x 4 x 128, float32"
    assert found == {
        ("attend", shape): {"dense kernel": {1024: 1.0, 2048: 2.0}},
        ("attend", f"{shape}, 400 MB between uses"): {"dense kernel": {1024: 3.0}},
        ("attend", f"{shape}, one after the other"): {"dense kernel": {1024: 4.0}},
    }
