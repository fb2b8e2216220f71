"""The table of what holds for a stack in which nothing happens names contracts about training, each with a reason."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from benchmarks import power
from contracts.contract import LAW
from contracts.harness.families import read_checks

pytestmark = pytest.mark.unit


def test_the_table_names_contracts_about_training() -> None:
    read_checks()
    named = {id for argued in power.table().values() for id in argued}
    assert not {id for id in named if "train" not in LAW.contracts[id].asks}


def test_what_holds_is_found_unless_it_is_argued() -> None:
    read_checks()
    found = power.findings("StandsStill", {"OPT-04a", "OPT-05b"}, {"OPT-04a", "OPT-05b", "PAR-13"},
                           {"OPT-05b": "told", "PAR-13": "one pass"})  # fmt: skip
    assert found[0].startswith("OPT-04a holds for StandsStill: ")
    assert found[1:] == ["PAR-13 is argued, and catches StandsStill"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_updates_that_do_not_happen_are_caught_where_they_are_compared() -> None:
    read_checks()
    asked = list(power.about_training(1, ("OPT-", "CKPT-01b", "PREC-05c")))
    held = power.held_alone("StandsStill", asked)
    assert (
        power.findings("StandsStill", held, {contract.id for contract, _ in asked}, power.table()["StandsStill"]) == []
    )
