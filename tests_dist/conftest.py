"""What needs ranks is skipped where there are none, with the command to type; promises of the law say so themselves."""

from __future__ import annotations

import pytest

from contracts.instruments.ranks import here

NEEDED = "needs ranks: torchrun --standalone --nproc-per-node 4 -m pytest -m dist"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_the_law = "promise" in getattr(item, "fixturenames", ())
        if here().world == 1 and not of_the_law and item.get_closest_marker("dist") is not None:
            item.add_marker(pytest.mark.skip(reason=NEEDED))
