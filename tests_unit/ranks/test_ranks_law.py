"""What the gate promises of many ranks holds. Each promise starts ranks of its own: one process puts the question."""

from __future__ import annotations

import pytest

from contracts.contract import LAW
from contracts.court.court import Court
from contracts.court.judge import judge
from contracts.harness.families import read_checks
from contracts.harness.plugin import OWN_RANKS_S
from tests_unit.ranks.running import needs_torch

read_checks()
pytestmark = needs_torch()
PROMISED = [(each, case) for each in LAW.contracts.values() if each.of_the_court for case in each.cases]
OF_MANY = [(each.id, case) for each, case in PROMISED if each.tier == "dist"]
assert {id for id, _ in OF_MANY} >= {"GATE-05", "GATE-05a", "GATE-06d"}


@pytest.mark.parametrize(("id", "case"), OF_MANY)
def test_the_gate_keeps_its_promises_of_many_ranks(id: str, case: str) -> None:
    result = judge(LAW.contracts[id], case, Court(), deadline_s=OWN_RANKS_S)
    assert result.outcome == "holds", result.words
