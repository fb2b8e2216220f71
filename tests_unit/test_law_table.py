"""The table of contents of the law is a reviewed file: a promise cannot be added, changed or dropped unseen."""

from pathlib import Path

import pytest

from contracts.harness.law_table import contents
from tests_unit._parties.bugs import LAW

REVIEWED = Path(__file__).parents[1] / "snapshots" / "contracts.md"


def test_the_table_of_contracts_equals_the_reviewed_one(pytestconfig: pytest.Config) -> None:
    # A document with a name of its own that others link to, which syrupy's rule of naming does not allow.
    if pytestconfig.getoption("update_snapshots", False):
        REVIEWED.parent.mkdir(exist_ok=True)
        REVIEWED.write_text(contents(LAW), encoding="utf-8")
    reviewed = REVIEWED.read_text(encoding="utf-8")
    assert contents(LAW) == reviewed, "the law has changed: `make snapshots`, and read the diff before committing it"
