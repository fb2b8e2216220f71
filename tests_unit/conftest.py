"""The folder of snapshots, and that `make test` runs every test that stands here."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    # Absolute: syrupy looks for unused snapshots beside every tests_* folder, and `../snapshots` has a name in each.
    config.option.snapshot_dirname = str(ROOT / "snapshots")


@pytest.hookimpl(tryfirst=True)  # before `-m` and `-k` choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is one of `unit` if it has no marker that `make test`, `make fuzz` or `make gpu` selects."""
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    run = {"gpu"} | {
        marker for chosen in re.findall(r'/pytest (?:-q )?-m "?([a-z ]+)', recipes) for marker in chosen.split()
    }
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and run.isdisjoint(
            each.name for each in item.iter_markers()
        ):
            item.add_marker(pytest.mark.unit)
