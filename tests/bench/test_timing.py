"""Who takes turns, how many caches are used in turn, and which durations are told."""

from collections.abc import Callable

import pytest

from rocketkv.bench.llama import line_through
from rocketkv.bench.machine import Limits
from rocketkv.bench.record import results_of
from rocketkv.bench.timing import Row, copies_needed, measure, times_of


class Clock:
    """A clock that stands still but for the work that is done."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now_s

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.log.append(name)
            self.now_s += seconds

        return call


def test_so_many_caches_that_the_cold_bytes_lie_between_two_uses() -> None:
    for touched in (1.0, 3e6, 63e6):
        copies = copies_needed(touched, 64e6)
        assert (copies - 1) * touched >= 64e6
        assert (copies - 2) * touched < 64e6
    assert copies_needed(64e6, 64e6) == 1


def test_copies_are_used_in_turn_and_rows_take_turns() -> None:
    clock = Clock()
    slow = Row("slow", "g", [clock.work("a0", 1 / 32), clock.work("a1", 1 / 32)])
    fast = Row("fast", "g", [clock.work("b", 1 / 64)])
    times = measure([slow, fast], seconds=1 / 16, least=2, clock=clock)
    assert clock.log == ["a0", "b", "a1", "b", "b", "a0", "b", "b"]
    assert [taken.n for taken in times] == [2, 4]
    clock.log.clear()
    measure([slow, fast], seconds=1 / 16, least=2, interleave=False, clock=clock)
    assert clock.log[2:] == ["a1", "a0", *["b"] * 4]


def test_percentiles_are_durations_that_occurred() -> None:
    times = times_of([0.005, 0.001, 0.002, 0.003, 0.004])
    assert (times.n, times.p20_ms, times.p50_ms, times.p80_ms) == (5, 2.0, 3.0, 5.0)


def test_the_faster_baseline_of_the_group_counts() -> None:
    clock = Clock()
    rows = [
        Row("slow form", "g", [clock.work("", 0.004)], 4e6, baseline=True),
        Row("fast form", "g", [clock.work("", 0.002)], 4e6, baseline=True),
        Row("ours", "g", [clock.work("", 0.001)], 1e6),
        Row("elsewhere", "h", [clock.work("", 0.001)]),
        Row("missing", "g", [], skipped="not here"),
    ]
    found = results_of(rows, measure(rows, seconds=0, least=3, clock=clock), Limits(2.0, {}))
    assert [result.baseline for result in found] == ["fast form", "fast form", "fast form", None, None]
    assert found[2].ratio == pytest.approx(2.0)
    assert found[2].share == pytest.approx(0.5)  # 1 MB in 1 ms is 1 GB/s of 2
    assert found[3].share is None
    assert found[4].times is None


def test_a_straight_line_is_found() -> None:
    assert line_through([1, 2, 4], [5.0, 7.0, 11.0]) == pytest.approx((3.0, 2.0))
