"""Ranks without a core to spare take turns; others keep the policy that they have."""

import os
import subprocess
import sys

import pytest

from tests_unit.ranks.running import ROOT

SAYS = (
    "import os; from contracts.ranks.cpu_sharing import take_turns; "
    "os.sched_setscheduler(0, os.{policy}, os.sched_param(0)); print(take_turns({ranks}), os.sched_getscheduler(0))"
)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
@pytest.mark.parametrize(
    ("policy", "ranks", "granted"),
    [("SCHED_OTHER", 10**6, True), ("SCHED_OTHER", 0, False), ("SCHED_IDLE", 10**6, False)],
)
def test_more_ranks_than_cores_use_the_batch_scheduling_policy(policy: str, ranks: int, granted: bool) -> None:
    words = SAYS.format(policy=policy, ranks=ranks)  # of a process of its own: a policy is not taken back
    said = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    kept = os.SCHED_BATCH if granted else getattr(os, policy)
    assert said.stdout.split() == [str(granted), str(kept)]
