"""Gates that go on when they are stopped."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.court import stopped_check
from contracts.court.court import Court
from contracts.spec.records import Stop, Stopped


class _Broken(Court):
    """A harness of which one part is exchanged, in the process of the command alone."""

    instead = ""

    def stopped(self, by: Stop) -> Stopped:
        return stopped_check.run(by, start=f"{self.instead.strip()}\n{stopped_check.START}")


@mutant(of="GATE-17", case="sigkill", says="after SIGKILL its folder holds a record that says conformant")
class TheJudgeLivesOn(_Broken):
    """The judging process has no guard, so it finishes its record when the command was killed."""

    instead = """
from contracts.ranks import guard
guard.stand_between = lambda **_: guard.Guarded()
"""


@mutant(of="GATE-17", case="sigkill", says="after SIGKILL 1 of its processes live on: sleep 60")
class WorkersLiveOn(_Broken):
    """The guard ends the judging process, and not what that one has started."""

    instead = """
from contracts.ranks import guard
whole = guard.stand_between
guard.stand_between = lambda **how: whole(**{**how, "tree": False})
"""


@mutant(of="GATE-17", case="sigterm", says="after SIGTERM it ends with 0, which is conformant")
class AStopIsAnEnd(_Broken):
    """A stop from outside is taken for an orderly end."""

    instead = """
from contracts.harness import supervisor
def told(self, number):
    Exception.__init__(self, "stopped")
    self.exit_code = 0
supervisor.Stopped.__init__ = told
"""


@mutant(of="GATE-17", case="full-disk", says="after full disk it ends with 0, which is conformant")
class NoRecordIsNoFault(_Broken):
    """Where no record could be written, there is nothing to be red about."""

    instead = """
from contracts.harness.commands import check
strict = check._verdict
check._verdict = lambda folder, *how: strict(folder, *how) if (folder / "run.jsonl").exists() else 0
check._confirm = lambda *_: None
"""
