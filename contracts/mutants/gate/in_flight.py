"""Gates that let one test's collectives meet those of the next."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.court import torchrun_session as ranking
from contracts.court.court import Court
from contracts.spec.world import RanksRun


class _Broken(Court):
    """A harness of which one part is exchanged, on every rank."""

    instead = ""

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        return ranking.run(tests, ranks, limit_s, beside={"conftest.py": self.instead})


@mutant(of="GATE-13", case="collectives", says="test_leaves_a_collective is passed, expected failed")
class LeftoversAreNotCompared(_Broken):
    """The ranks agree on outcomes alone, and nobody looks at what is still in flight."""

    instead = """
from contracts.ranks import job
job.leftovers = lambda views: []
"""


@mutant(of="GATE-13", case="messages", says="test_sends_what_nobody_takes is passed, expected failed")
class MessagesAreNotCounted(_Broken):
    """Collectives are compared, and messages between two ranks are not."""

    instead = """
from contracts.ranks import in_flight
in_flight._messages = lambda channel, views: iter(())
"""


@mutant(of="GATE-13", case="messages", says="the failure of test_waits_for_what_nobody_sends does not name ['rank 1")
class TheOtherRankIsBlamed(_Broken):
    """What is left is charged to its test, and to the rank that has nothing to do with it."""

    instead = """
from dataclasses import replace
from contracts.ranks import in_flight, job
def swapped(views):
    found = in_flight.leftovers(views)
    return [replace(each, rank=0, words=each.words.replace("rank 1 waits", "rank 0 waits")) for each in found]
job.leftovers = swapped
"""
