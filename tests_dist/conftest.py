"""What needs ranks is skipped where there are none, with the command to type; promises of the law say so themselves."""

from __future__ import annotations

import pytest

from contracts.checks.numeric import transformers
from contracts.contract import LAW
from contracts.instruments.ranks import here
from contracts.spec.records import Item

NEEDED = "needs ranks: torchrun --standalone --nproc-per-node 4 -m pytest -m dist"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_the_law = "promise" in getattr(item, "fixturenames", ())
        if of_the_law and _about_transformers(item):
            item.add_marker(pytest.mark.slow)
        if here().world == 1 and not of_the_law and item.get_closest_marker("dist") is not None:
            item.add_marker(pytest.mark.skip(reason=NEEDED))


def _about_transformers(item: pytest.Item) -> bool:
    """Whether a promise is one that every transformer can answer. Of the reference, which has every letter, the same is
    asked layout by layout in checks/numeric/layouts.py: `make gate` asks both."""
    promise = getattr(item, "callspec").params["promise"]  # noqa: B009  # of a parametrized test
    return isinstance(promise, Item) and LAW.contracts[promise.id].check.__module__ == transformers.__name__
