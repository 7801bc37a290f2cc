"""Which implementation of an op runs: an unknown or missing one is named, with the way out."""

import pytest

from rocketkv.ops.attend.reference import attend
from rocketkv.ops.dispatch import op
from rocketkv.ops.errors import BackendError


def test_the_reference() -> None:
    assert op("attend", "attend", "reference") is attend


def test_an_unknown_backend() -> None:
    with pytest.raises(BackendError, match=r"unknown backend 'cuda'.*reference"):
        op("attend", "attend", "cuda")
