"""Where snapshots lie, and that `make test` runs every test that stands here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    # Absolute: syrupy looks for unused snapshots beside every tests_* folder, and `../snapshots` has a name in each.
    config.option.snapshot_dirname = str(ROOT / "snapshots")


@pytest.hookimpl(tryfirst=True)  # before `-m` and `-k` choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test without a marker that `make test`, `make fuzz` or `make gpu` selects: nothing would ever run it."""
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    run = {"gpu"} | {
        marker for chosen in re.findall(r'/pytest (?:-q )?-m "?([a-z ]+)', recipes) for marker in chosen.split()
    }
    idle = {
        item.nodeid.partition("[")[0]
        for item in items
        if item.path.is_relative_to(Path(__file__).parent) and run.isdisjoint(each.name for each in item.iter_markers())
    }
    if idle:
        tests = ", ".join(sorted(idle))
        raise pytest.UsageError(f"make test selects none of these tests; mark them, as with pytest.mark.unit: {tests}")
