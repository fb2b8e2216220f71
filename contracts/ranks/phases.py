"""A test on several ranks: its phases under watch, the outcome that the ranks agree on, and what it leaves behind."""

import faulthandler
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from contracts.ranks import console, hypothesis_sync, plugin_compatibility, reports
from contracts.ranks.session import Session, wanted, world_of
from contracts.ranks.watchdog import Aborted, Region

REARM_S = 30.0


class Phases:
    """The hooks of a test, in the order in which pytest calls them."""

    def __init__(self, ranks: Session) -> None:
        self.ranks, self.config, self.here, self.job = ranks, ranks.config, ranks.here, ranks.job
        self._limits: dict[str, float] = {}
        self._regions: dict[str, Region] = {}
        self._failed = False  # whether the current test has failed already
        self._poisoned_before = False
        self._groups_before = 1
        self._armed_until = 0.0
        self._parts: list[str] = []  # failures of subtests, on this rank

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """Take the limit from pytest-timeout, and not its timer, which would end the process."""
        self._limits[item.nodeid] = settings.timeout
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool:
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self.ranks.journal is not None:
            self.ranks.journal.start(item.nodeid)
        limits, self.ranks.item = self.ranks.limits, item
        world = world_of(item, self.here.size)
        if world <= self.here.size:  # a test for more ranks is skipped, and needs no group
            self.job.fit(world, lambda: self._drop_fixtures(item.session))
        self._failed = self._poisoned_before = False
        self._parts = []
        self._groups_before = self.job.group.count()
        self._arm(
            3 * (self._limit(item) + limits.grace + limits.hard) + hypothesis_sync.AFTER_S
        )  # setup, call, teardown
        try:
            ran = yield
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            self.job.end(f"rank {self.here.rank} stopped the session in {item.nodeid}: {error}", restart=False)
            raise
        self.ranks.item = None
        self._after(item)
        return ran

    def _arm(self, seconds: float) -> None:
        """Let the interpreter write all stacks and end this process from C, even if every rank holds the GIL.

        Not for each test again: every call ends one thread and starts another.
        """
        now = time.monotonic()
        if now + seconds > self._armed_until:
            self._armed_until = now + seconds + REARM_S
            faulthandler.dump_traceback_later(seconds + REARM_S, exit=True, file=self.job.recovery.stacks)

    def _after(self, item: pytest.Item) -> None:
        if self.ranks.journal is not None:
            self.ranks.journal.done(item.nodeid)
        self._limits.pop(item.nodeid, None)
        counts = self.job.counts
        if self.job.poisoned:
            self.job.rebuild(lambda: self._drop_fixtures(item.session))
        elif (made := self.job.group.count() - self._groups_before) > 0:
            counts.left_by[item.nodeid] = made
        self.job.group.let_go()
        if counts.aborted >= self.config.getoption("dist_max_aborts"):
            item.session.shouldfail = f"{counts.aborted} phases were aborted; see --dist-max-aborts"

    def _drop_fixtures(self, session: pytest.Session) -> None:
        """Tear down all remaining fixtures of all scopes; errors here follow from what was reported already."""
        for _ in range(2):  # a second time, for what the first exception left over
            try:
                _tear_down(session)
            except Exception as error:
                sys.stderr.write(f"teardown after an abort: {type(error).__name__}: {error}\n")
            else:
                return

    def _limit(self, item: pytest.Item) -> float:
        marker = item.get_closest_marker("dist")
        own = marker.kwargs.get("timeout") if marker is not None else None
        return float(own or self._limits.get(item.nodeid) or self.ranks.limits.test)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        if self.job.poisoned:  # a plugin that repeats a failed test does not leave the protocol
            self.job.rebuild(lambda: self._drop_fixtures(item.session))
        self._failed = False
        with self._watched(item, "setup"):
            plugin_compatibility.roll(plugin_compatibility.seed_of(item.nodeid, self.config.getoption("dist_seed")))
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._watched(item, "call") as region, hypothesis_sync.in_step(item, self.job, region):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        return True if self.here.rank >= wanted(pyfuncitem, self.here.size) else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        self._poisoned_before = self.job.poisoned
        with self._watched(item, "teardown"):
            if self._poisoned_before:
                _tear_down(item.session)
            return (yield)

    @contextmanager
    def _watched(self, item: pytest.Item, when: str) -> Iterator[Region]:
        with self.job.phase(f"the {when} of {item.nodeid}", self._limit(item)) as region:
            self._regions[when] = region
            yield region

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self.job.watchdog.region is not None:  # the report of a subtest, whose test still runs
            self._parts += [report.longreprtext] if report.failed else []
            return report
        region = self._regions.pop(call.when)
        if copies := self.job.copies():
            words = [] if report.passed else [report.longreprtext]
            report.outcome, report.longrepr = "failed", "\n".join([*words, *copies])
        if call.when == "call" and self._parts and report.passed:
            report.outcome, report.longrepr = "failed", "\n".join(["a subtest failed", *self._parts])
        error = None if call.excinfo is None else call.excinfo.value
        skipped = isinstance(error, pytest.skip.Exception)
        aborted = self.job.why_aborted(region, raised=error is not None and not skipped)
        lost_group = call.when == "teardown" and not self.job.poisoned and not self.job.group.alive()
        bad = not report.passed or bool(aborted)
        post = reports.post_of(
            report,
            self.here.rank,
            aborted=aborted,
            raised=(error is not None and not skipped) or lost_group,
            order=self.job.agreement.order(region.step) if bad else 0,
        )
        if isinstance(error, Aborted):  # the evidence has the stack of the abort
            post = replace(post, text=str(error), crash="")
        took = wanted(item, self.here.size) if call.when == "call" else None
        merged = self.job.agree(post, region, name=call.when, took=took, even=call.when != "setup")
        reports.rewrite(report, merged, own=post.kind, rank=self.here.rank)
        if call.when == "teardown" and self._poisoned_before and self._failed and merged.kind == "failed":
            reports.soften(report, merged)
        self.job.counts.aborted += merged.aborted
        if merged.kind == "failed":  # on every rank, later phases carry the properties of the rank that decided
            item.user_properties[:] = merged.properties
            self._failed = True
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Count a subtest only with its test: the session must stop at the same point on every rank."""
        session = self.ranks.session
        assert session is not None
        before = session.testsfailed, session.shouldfail
        logged = yield
        if isinstance(report, pytest.SubtestReport):
            session.testsfailed, session.shouldfail = before
        else:
            self._tell(report)
        return logged

    def _tell(self, report: pytest.TestReport) -> None:
        if self.ranks.journal is None or report.nodeid in self.ranks.past.done:
            return
        self.ranks.journal.report(report.nodeid, self.ranks.serialized(report))
        crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        if report.failed and crash:  # now, because the final summary may never be printed
            console.say(self.config, f"{report.nodeid} ({report.when}): {str(crash).partition(chr(10))[0]}")


def _tear_down(session: pytest.Session) -> None:
    """Finalize every live fixture, of all scopes: one of the session may hold a dead process group.

    Private in pytest. Seen in 7.0 to 9.2.
    """
    session._setupstate.teardown_exact(None)
