"""Every test of an op runs on every backend; float64, which kernels refuse, on the reference alone."""

import pytest
import torch

from support import backends

ANY_BACKEND = ("test_dispatch", "test_kernels", "test_linear", "test_triton")
"""Modules that name their backends themselves."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the name of a backend, through the fixture below."""
    if "_backend" in metafunc.fixturenames and not metafunc.module.__name__.rsplit(".", 1)[-1].startswith(ANY_BACKEND):
        metafunc.parametrize("_backend", backends.BACKENDS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a kernel refuses; `test_kernels` checks the refusal."""

    def refused(item: pytest.Item) -> bool:
        given = getattr(item, "callspec", None)
        return (
            bool(given)
            and given.params.get("_backend") in ("cpu", "triton")
            and given.params.get("dtype") == torch.float64
        )

    config.hook.pytest_deselected(items=[item for item in items if refused(item)])
    items[:] = [item for item in items if not refused(item)]


@pytest.fixture(autouse=True)
def _backend(request: pytest.FixtureRequest) -> None:
    backends.current[0] = getattr(request, "param", "reference")
