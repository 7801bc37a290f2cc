"""Measured storage and traffic are the formulas, but for terms that have a number: for every method, to the byte."""

from functools import cache
from pathlib import Path

import pytest

from rocketkv.bench.ledger import SHRINK_FACTORS, Ledger, ledgers, measure
from rocketkv.bench.methods_page import PAGE_CONTEXT_TOKENS, methods_page
from rocketkv.bench.synthetic import LayerShape
from rocketkv.policies.catalogue import methods
from rocketkv.policies.registry import make_policy, policy_names

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
TINY = LayerShape(kv_heads=3, group_size=2, head_dim=24)
NAMES = [*policy_names(), "adakv+hsa", "duoattention+quest", "snapkv+sparq", "streamingllm+loki"]


@cache
def page_ledgers() -> list[Ledger]:
    """The measurements of the page in the docs."""
    return ledgers(PAGE_CONTEXT_TOKENS)


def assert_explained(ledger: Ledger, context_tokens: int, shape: LayerShape) -> None:
    """Not a byte is left over."""
    full_bytes = context_tokens * shape.kv_heads * shape.pair_bytes
    assert ledger.storage_unexplained * full_bytes == pytest.approx(0, abs=1e-3)
    assert ledger.traffic_unexplained * full_bytes == pytest.approx(0, abs=1e-3)


def test_every_method_of_the_page() -> None:
    found = page_ledgers()
    assert {ledger.method for ledger in found} == set(policy_names())
    assert len(found) == 3 * (len(policy_names()) - 1) + 1
    for ledger in found:
        assert_explained(ledger, PAGE_CONTEXT_TOKENS, LayerShape())


@pytest.mark.parametrize("shrink_factor", SHRINK_FACTORS)
@pytest.mark.parametrize("name", NAMES)
def test_at_odd_sizes(name: str, shrink_factor: int) -> None:
    # Lengths that no page size and no budget divides; ranks at their floor at c = 64.
    ledger = measure(name, context_tokens=1103, shrink_factor=shrink_factor, shape=TINY)
    assert_explained(ledger, 1103, TINY)


@pytest.mark.parametrize("share", [0.25, 0.7])
def test_another_share_for_the_estimate(monkeypatch, share: float) -> None:
    monkeypatch.setattr(
        "rocketkv.bench.ledger.policy_for", lambda name, t, shape: make_policy(name, t, estimate_share=share)
    )
    for name in ("rocketkv", "rocketkv-mt", "hsa"):
        for shrink_factor in SHRINK_FACTORS:
            ledger = measure(name, context_tokens=1103, shrink_factor=shrink_factor, shape=TINY)
            assert_explained(ledger, 1103, TINY)


def reasons(name: str, shrink_factor: int = 64) -> set[str]:
    """Why traffic differs at odd sizes."""
    ledger = measure(name, context_tokens=1103, shrink_factor=shrink_factor, shape=TINY)
    return {term.reason for term in ledger.traffic_terms}


def test_reasons_of_traffic() -> None:
    assert "rank at least 1" in reasons("sparq")
    assert "rank at least 1" not in reasons("sparq", 4)
    assert "both bounds where heads differ in sign" in reasons("quest")
    assert "every query head reads its own tokens" in reasons("exact-topk")
    assert "last page in part" in reasons("hsa")


def test_what_the_paper_counts_twice() -> None:
    by_name = {ledger.method: ledger for ledger in page_ledgers() if ledger.shrink_factor == 16}
    r = 0.2 + 0.06 * 4
    assert by_name["rocketkv"].storage_derived == pytest.approx(16**-r + 16 ** (-(1 + r) / 2))
    assert by_name["rocketkv"].storage_paper == pytest.approx(16**-r + 2 * 16 ** (-(1 + r) / 2))
    assert by_name["sparq"].storage_derived == 1.5
    assert by_name["hsa"].storage_derived == 1.25
    assert by_name["adakv"].storage_paper is None


def test_nothing_but_rounding_and_room_is_large() -> None:
    """Apart from room to grow, page rounding and a pattern's own cost, measured and derived agree to a thousandth."""
    for ledger in page_ledgers():
        small = [
            term
            for term in ledger.storage_terms
            if not term.reason.startswith(("room", "pages of", "whole heads", "basis", "indices"))
        ]
        assert abs(sum(term.share for term in small)) < 1e-3


def test_the_page_in_the_docs_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == methods_page(methods(), page_ledgers()), (
        "docs/methods.md has drifted: run `rocketkv policies --markdown > docs/methods.md`"
    )
