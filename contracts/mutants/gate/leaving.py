"""Gates that believe an exit code of 0."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.court import torchrun_session as ranking
from contracts.court.court import Court
from contracts.spec.world import RanksRun


@mutant(of="GATE-14", case="in-a-test", says="2 ranks end with 0, though a test failed or did not run")
@mutant(of="GATE-14", case="in-a-session-fixture", says="2 ranks end with 0, though a test failed or did not run")
class RanksWithoutAGuard(Court):
    """Plain `torchrun -m pytest`: the exit code of a rank is whatever its process leaves with."""

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        return ranking.run(tests, ranks, limit_s, plugin=(), restarts=0)


@mutant(of="GATE-14", case="in-sessionfinish", says="2 ranks end with 0, though a test failed or did not run")
class ThroughBeforeItIs(Court):
    """The guard is told that the session is through as soon as it begins."""

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        early = "from contracts.ranks import exit\nexit.through(0)\n"
        return ranking.run(tests, ranks, limit_s, beside={"conftest.py": early})


@mutant(of="GATE-14", case="by-the-status", says="2 ranks end with 0, though a test failed or did not run")
class TheStatusDecides(Court):
    """The exit status that a plugin sets counts, and not whether tests failed."""

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        forget = (
            "def pytest_unconfigure(config):\n    config.pluginmanager.getplugin('ranks').session.testsfailed = 0\n"
        )
        return ranking.run(tests, ranks, limit_s, beside={"conftest.py": forget})
