"""Gates that do not coordinate the ranks."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.court import torchrun_session as ranking
from contracts.court.court import Court
from contracts.spec.world import RanksRun

_RANK_0_REPORTS = """
import os

def pytest_addoption(parser):
    parser.addini("unused", "so that this file is a conftest")

def pytest_configure(config):
    config.addinivalue_line("markers", "dist: of several ranks")
    if os.environ["RANK"] != "0":
        config.option.xmlpath = None

def pytest_sessionfinish(session):
    if os.environ["RANK"] != "0":
        session.exitstatus = 0  # else torchrun may end rank 0 before it has written
"""


@mutant(of="GATE-05", case="raises-and-skips", says="test_raises is passed, expected failed")
@mutant(of="GATE-05a", case="by-parameter", says="passed, though the ranks had collected different tests")
@mutant(of="GATE-06d", case="the-third-of-three", says="the first line of the failure does not say 'rank 2 diverged")
class PlainPytest(Court):
    """Runs plain `torchrun -m pytest`: every rank has its own session, and rank 0 writes the report."""

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        return ranking.run(tests, ranks, limit_s, plugin=(), restarts=0, beside={"conftest.py": _RANK_0_REPORTS})


@mutant(of="GATE-05", case="dies-twice", says="test_before has no outcome")
class EndsWithTheFirstDeath(Court):
    """The launcher may not restart the ranks, so the report that rank 0 was to write dies with rank 0."""

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        return ranking.run(tests, ranks, limit_s, restarts=0)


@mutant(of="GATE-05", case="hangs", says="s, the limit of a test is 5 s")
class TakesItsTime(Court):
    """Does not pass on the time limit of a test, so a hang costs the default limit."""

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        return super().run_ranks(tests, ranks, 25.0)
