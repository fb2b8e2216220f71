"""Ranks without a core to spare take turns; others keep the policy that they have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests_unit.ranks.running import ROOT

SAYS = (
    "import os; from contracts.harness.ranks.cpu_sharing import take_turns; "
    "print(take_turns({ranks}), os.sched_getscheduler(0))"
)


@pytest.mark.unit
@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
@pytest.mark.parametrize(("ranks", "granted"), [(10**6, True), (0, False)])
def test_crowded_ranks_ask_for_the_batch_policy_and_others_for_none(ranks: int, granted: bool) -> None:
    command = [sys.executable, "-c", SAYS.format(ranks=ranks)]  # of a process of its own: a policy is not taken back
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert said == [str(granted), str(os.SCHED_BATCH if granted else os.sched_getscheduler(0))]
