"""The pytest plugin of many ranks. Hooks stand in the order in which pytest calls them; what they do is elsewhere."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from contracts.harness.ranks import console, examples, leaving, neighbours, place, recovery, reports, resume
from contracts.harness.ranks.agreement import Limits, differences
from contracts.harness.ranks.job import Job
from contracts.harness.ranks.leaving import leave_quietly
from contracts.harness.ranks.merge import VERDICT
from contracts.harness.ranks.watchdog import Aborted, Region

HERE = place.from_environment(os.environ)
ENVIRONMENT = ("NCCL_", "TORCH_", "PYTORCH_", "CUBLAS_", "CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS")
PEERS_S = 5.0  # what the other ranks get to leave before rank 0 does
VERSIONS = ("torch", "pytest", "numpy", "hypothesis")
SET_WHERE_UNSET = {
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # c10d warns of every wait that runs out, and waiting in slices is what we do
    "TORCH_FR_BUFFER_SIZE": "2000",  # entries of the flight recorder
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # NCCL's own watchdog would end the process that we want to bring back
    "OMP_NUM_THREADS": "1",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    if HERE is not None:
        for name, value in SET_WHERE_UNSET.items():
            os.environ.setdefault(name, value)
    group = parser.getgroup("ranks", "tests of several ranks, under torchrun")
    group.addoption(
        "--dist-timeout", type=float, metavar="SECONDS", help="what a phase of a test may take (60; NCCL 120)"
    )
    group.addoption(
        "--dist-grace", type=float, metavar="SECONDS", help="what peers get after a rank failed (1; NCCL 5)"
    )
    group.addoption("--dist-hard", type=float, metavar="SECONDS", help="to come back from an abort (10; NCCL 20)")
    group.addoption("--dist-backend", choices=("auto", "gloo", "nccl"), default="auto", help="of the session's group")
    group.addoption("--dist-recover", choices=("auto", "restart"), default="auto",
                    help="auto: a new group in place; restart: leave it to torchrun --max-restarts")  # fmt: skip
    group.addoption("--dist-out", metavar="DIR", help="where logs, stacks and the journal go (the temporary folder)")
    group.addoption("--dist-seed", type=int, default=0, metavar="N", help="mixed into every test's seed")
    group.addoption("--dist-max-aborts", type=int, default=20, metavar="N", help="give the session up after so many")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "dist(ranks=N, timeout=S): needs N ranks (all); the ranks beyond stand idle")
    if HERE is not None:
        neighbours.refuse(config)
        config.pluginmanager.register(Ranks(config, HERE), "ranks")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    code = yield
    ranks = config.pluginmanager.getplugin("ranks")
    if ranks is not None:
        ranks.leave(int(code or 0))
    return code


@pytest.fixture
def shared_tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Rank 0's `tmp_path`, the same on every rank. Several nodes need a --basetemp that they share."""
    ranks = request.config.pluginmanager.getplugin("ranks")
    return tmp_path if ranks is None else Path(ranks.from_rank_0(str(tmp_path)))


@pytest.fixture
def test_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test, equal on every rank; torch, numpy and random are seeded with it already."""
    return neighbours.seed_of(request.node.nodeid, request.config.getoption("dist_seed"))


@pytest.fixture
def rank_seed(test_seed: int) -> int:
    """A seed of this test that is another on every rank, for who asks for it."""
    return test_seed + 1 + (0 if HERE is None else HERE.rank)


class Ranks:
    """The hooks of one rank."""

    def __init__(self, config: pytest.Config, here: place.Place) -> None:
        self.config, self.here = config, here
        self.folder = place.folder(config.getoption("dist_out"))
        if here.attempt and self.folder.complete.exists():  # torchrun restarts after an ordinary red session as well
            leave_quietly(int(self.folder.complete.read_text()) if here.speaks else 0)
        self.console = console.take(config, None if here.speaks else self.folder.log(here.rank, here.attempt))
        neighbours.own_basetemp(config, here.rank)
        if not here.speaks:
            neighbours.quieten(config)
        backend = config.getoption("dist_backend")
        self.job = self._job(backend)
        self.limits = self.job.limits
        if config.pluginmanager.hasplugin("hypothesispytest"):
            neighbours.draw_alike(self.job.group.backend)
        self.past = resume.Past()
        self.journal: resume.Journal | None = None
        self.session: pytest.Session | None = None
        self._collect_faults: dict[str, str] = {}
        self._limits: dict[str, float] = {}
        self._failed = False  # whether the test that runs has failed already
        self._poisoned_before = False
        self._agreed_to_stop = False
        self._item: pytest.Item | None = None  # the test that runs
        self._regions: dict[str, Region] = {}
        self._groups_before = 1
        self.job.start()

    def _job(self, backend: str) -> Job:
        from contracts.harness.ranks.groups import backend_of

        option, nccl = self.config.getoption, backend_of(backend) == "nccl"

        def chosen(name: str, gloo: float, other: float) -> float:
            value = option(name)
            return float(value) if value is not None else (other if nccl else gloo)

        limits = Limits(
            test=chosen("dist_timeout", 60, 120), grace=chosen("dist_grace", 1, 5), hard=chosen("dist_hard", 10, 20)
        )
        restart = option("dist_recover") == "restart"
        return Job(self.here, self.folder, limits, backend=backend, restart_only=restart, speak=self._speak)

    # -- before the first test ---------------------------------------------------------------------------------

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session
        self.job.recovery.watch_for_crashes()  # here, because pytest's own faulthandler plugin came before

    def pytest_report_header(self) -> str:
        here, limits = self.here, self.limits
        return (
            f"ranks: {here.size} over {self.job.group.backend}, seed {self.config.getoption('dist_seed')}, "
            f"limit {limits.test:g} s, attempt {here.attempt + 1} of {here.attempt + here.restarts_left + 1}, "
            f"logs in {self.folder.path}"
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._collect_faults[report.nodeid] = str(report.longrepr)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if item.get_closest_marker("dist") is None]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item.get_closest_marker("dist") is not None]
        for item in items:
            wanted = _wanted(item, self.here.size)
            if wanted > self.here.size:
                item.add_marker(pytest.mark.skip(reason=f"needs {wanted} ranks, and there are {self.here.size}"))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Agree on what is run, with what; then resume, and make the group."""
        ids = [item.nodeid for item in session.items]
        views = [json.loads(view) for view in self._say_all(json.dumps(self._view(ids)), "collection")]
        self.job.meet_all()
        found = differences(views)
        if found:
            self._stop_before_the_first_test(ids, found)
        if self._collect_faults or self.config.option.collectonly or not ids:
            self._agreed_to_stop = True
            return
        self._resume(session)
        if session.items:
            self.job.open_group()

    def _view(self, ids: list[str]) -> dict[str, object]:
        chosen = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(ENVIRONMENT) and not name.endswith("_IFNAME")
        }
        return {
            "tests": len(ids),
            "tests' ids": hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16],
            **{f"collection of {nodeid}": text for nodeid, text in self._collect_faults.items()},
            "python": platform.python_version(),
            **{package: _version(package) for package in VERSIONS},
            "arguments": [arg for arg in self.config.invocation_params.args if isinstance(arg, str)],
            **chosen,
        }

    def _stop_before_the_first_test(self, ids: list[str], found: list[str]) -> None:
        lists = [json.loads(said) for said in self._say_all(json.dumps(ids), "ids")]
        for rank, other in enumerate(lists[1:], start=1):
            more, fewer = [i for i in other if i not in lists[0]], [i for i in lists[0] if i not in other]
            found += [f"only on rank {rank}, not on 0: {', '.join(more[:10])}"] if more else []
            found += [f"only on rank 0, not on {rank}: {', '.join(fewer[:10])}"] if fewer else []
            if not more and not fewer and other != lists[0]:
                theirs, ours = next(pair for pair in zip(other, lists[0], strict=True) if pair[0] != pair[1])
                found.append(f"order: {ours} on rank 0 where {theirs} on rank {rank}")
        self._agreed_to_stop = True
        pytest.exit("the ranks would not run the same tests in the same way:\n  " + "\n  ".join(found), returncode=4)

    def _say_all(self, mine: str, name: str) -> list[str]:
        return self.job.exchange(mine, limit=self.limits.collection, name=name)

    def from_rank_0(self, mine: str) -> str:
        """A value of rank 0, on every rank; called by all of them, in a phase of a test."""
        key = f"{self.job.agreement.step}/of-rank-0"
        store = self.job.agreement.store
        if self.here.speaks:
            store.set(key, mine)
        while not store.check([key]):
            time.sleep(0.002)  # and not a blocking wait, which the watchdog could not end
        return store.get(key).decode()

    # -- what earlier attempts left ----------------------------------------------------------------------------

    def _resume(self, session: pytest.Session) -> None:
        if self.here.attempt:
            mine = self._what_happened().text() if self.here.speaks else ""
            self.past = resume.Past.of(self._say_all(mine, "past")[0])
        if self.here.speaks:
            self.journal = resume.Journal(self.folder.journal)
        self._replayed = [item for item in session.items if item.nodeid in self.past.done]
        session.items[:] = [item for item in session.items if item.nodeid not in self.past.done]

    def _what_happened(self) -> resume.Past:
        """The journal, with the test that was under way as a failed one: it is not tried again."""
        past = resume.past(self.folder.journal)
        assert self.session is not None
        item = next((each for each in self.session.items if each.nodeid == past.under_way), None)
        if item is None:
            return past
        account = recovery.account(self.folder, self.here.attempt - 1, self.here.size)
        verdict = {"outcome": "failed", "primary": account.rank, "words": account.reason, "recovery": "restarted"}
        journal = resume.Journal(self.folder.journal)
        for report in reports.failure(item, account.told(), account.reason, [(VERDICT, json.dumps(verdict))]):
            journal.report(item.nodeid, self._serialized(report))
        journal.done(item.nodeid)
        journal.close()
        return resume.past(self.folder.journal)

    def _serialized(self, report: pytest.TestReport) -> resume.Report:
        plain: resume.Report = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        return {**plain, "longrepr": _plain(report)}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        if not self.here.speaks:
            neighbours.forget(self.config)
        if self.past.done and not self.config.option.collectonly:
            # pytest refuses to start where something has failed, unless it is told that this is meant.
            self.config.option.continue_on_collection_errors = True
            self._replay()
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
        return (yield)

    def _replay(self) -> None:
        for item in self._replayed:
            hook = item.ihook
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for plain in self.past.done[item.nodeid]:
                words = plain.get("longrepr")
                report = self.config.hook.pytest_report_from_serializable(
                    config=self.config, data={**plain, "longrepr": None}
                )
                report.longrepr = _words(words)
                hook.pytest_runtest_logreport(report=report)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    # -- a test ------------------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """pytest-timeout reads option, ini and marker; the clock is ours: its own would end the process."""
        self._limits[item.nodeid] = settings.timeout
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool:
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self.journal is not None:
            self.journal.start(item.nodeid)
        limits, self._item = self.limits, item
        self._failed = self._poisoned_before = False
        self._groups_before = self.job.group.count()
        last = self._limit(item) + limits.grace + limits.hard + 30
        faulthandler.dump_traceback_later(last, exit=True, file=self.job.recovery.stacks)
        try:
            ran = yield
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            self.job.end(f"rank {self.here.rank} stopped the session in {item.nodeid}: {error}", restart=False)
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
        self._after(item)
        self._item = None
        return ran

    def _after(self, item: pytest.Item) -> None:
        if self.journal is not None:
            self.journal.done(item.nodeid)
        self._limits.pop(item.nodeid, None)
        counts = self.job.counts
        if self.job.poisoned:
            self.job.rebuild(self._drop_fixtures)
        elif (made := self.job.group.count() - self._groups_before) > 0:
            counts.left_by[item.nodeid] = made
        if counts.aborted >= self.config.getoption("dist_max_aborts"):
            item.session.shouldfail = f"{counts.aborted} phases were aborted; see --dist-max-aborts"

    def _drop_fixtures(self) -> None:
        """Tear down every fixture that is left, of all scopes; what that raises follows from what was reported."""
        assert self.session is not None
        for _ in range(2):  # the second time for what the first exception left
            try:
                _tear_down(self.session)
            except Exception as error:
                sys.stderr.write(f"teardown after an abort: {type(error).__name__}: {error}\n")
            else:
                return

    def _limit(self, item: pytest.Item) -> float:
        marker = item.get_closest_marker("dist")
        own = marker.kwargs.get("timeout") if marker is not None else None
        return float(own or self._limits.get(item.nodeid) or self.limits.test)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._watched(item, "setup"):
            neighbours.roll(neighbours.seed_of(item.nodeid, self.config.getoption("dist_seed")))
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._watched(item, "call") as region, examples.in_step(item, self.job, region):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        return True if self.here.rank >= _wanted(pyfuncitem, self.here.size) else None

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
        region = self._regions.pop(call.when)
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
        if isinstance(error, Aborted):  # the stack of the abort stands in the evidence
            post = replace(post, text=str(error), crash="")
        merged = self.job.agree(post, region)
        reports.rewrite(report, merged, own=post.kind, rank=self.here.rank)
        if call.when == "teardown" and self._poisoned_before and self._failed and merged.kind == "failed":
            reports.soften(report, merged)
        self.job.counts.aborted += merged.aborted
        if merged.kind == "failed":  # later phases carry the properties of the rank that decided, on every rank
            item.user_properties[:] = merged.properties
            self._failed = True
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.journal is None or report.nodeid in self.past.done:
            return
        self.journal.report(report.nodeid, self._serialized(report))
        crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        if report.failed and crash:  # at once: the last page may never come
            console.say(self.config, f"{report.nodeid} ({report.when}): {str(crash).partition(chr(10))[0]}")

    # -- the end -----------------------------------------------------------------------------------------------

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if not self._agreed_to_stop:
            self.job.end(f"rank {self.here.rank} stopped the session: {excinfo.value}", restart=False)

    def pytest_internalerror(self, excrepr: object) -> None:
        console.say_raw(self.console, f"rank {self.here.rank}, internal error:\n{excrepr}\n")
        self.job.end(f"rank {self.here.rank} met an internal error of pytest", restart=False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.job.counts.leaked = max(0, self.job.group.count() - 1)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        counts, where = self.job.counts, self.folder.path
        if counts.rebuilt or counts.leaked or self.here.attempt:
            terminalreporter.section("ranks")
            terminalreporter.write_line(
                f"{counts.aborted} phases aborted, {counts.rebuilt} times a new process group, "
                f"{self.here.attempt} restarts; logs of every rank: {where}"
            )
        if counts.leaked:
            tests = ", ".join(f"{nodeid} ({made})" for nodeid, made in counts.left_by.items())
            terminalreporter.write_line(f"{counts.leaked} process groups were made and never destroyed: {tests}")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        code = int(self.session.exitstatus) if self.session is not None else 4
        codes = self.job.exchange(str(code), limit=self.limits.end, name="end")
        if self.here.local_rank == 0:
            self.folder.complete.write_text(codes[0])
        self.job.close()
        if self.journal is not None:
            self.journal.close()

    def _speak(self, told: str, again: bool) -> None:
        """Tell how this attempt ended, on the console; called in whatever thread saw the end."""
        reason, _, _ = told.partition("\n")
        where = self._item.nodeid if self._item is not None else "between two tests"
        then = "torchrun starts the ranks again" if again else "nothing is run after it"
        console.say_raw(self.console, f"\nranks: {reason} ({where}); {then}; logs in {self.folder.path}\n")
        if again:
            return
        if not self.here.speaks or self.session is None:
            console.say_raw(self.console, told + "\n")
            return
        said = []
        if self._item is not None:
            verdict = {"outcome": "failed", "primary": -1, "words": reason, "recovery": "stopped"}
            said = reports.failure(self._item, told, reason, [(VERDICT, json.dumps(verdict))])
        console.finish(self.config, self.session, said, reason)
        leaving.error_file(reason)

    def leave(self, code: int) -> None:
        """Leave in order: the first to go with another code than 0 takes all others with it, so rank 0 goes last and
        alone carries the code."""
        if not self.here.speaks:
            leave_quietly(0)
        deadline = time.monotonic() + PEERS_S
        others = [rank for rank in self.job.recovery.peers if rank != self.here.rank]
        while time.monotonic() < deadline and len(self.job.recovery.lost(others)) < len(others):
            time.sleep(0.01)
        if code and self.session is not None:
            leaving.error_file(f"{self.session.testsfailed} of {self.session.testscollected} tests failed")


def _wanted(item: pytest.Item, size: int) -> int:
    marker = item.get_closest_marker("dist")
    return int(marker.kwargs.get("ranks", size)) if marker is not None else size


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _tear_down(session: pytest.Session) -> None:
    """Finalize every fixture that lives, of all scopes.

    Private in pytest: what holds a dead process group may be a fixture of the session. Seen in 7.0 to 9.2.
    """
    session._setupstate.teardown_exact(None)


def _plain(report: pytest.TestReport) -> object:
    """A report's words as JSON."""
    if report.longrepr is None or isinstance(report.longrepr, tuple):
        return report.longrepr
    crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
    return {"text": report.longreprtext, "crash": str(crash)}


def _words(plain: Any) -> Any:
    """What `_plain` wrote."""
    if plain is None:
        return None
    return reports.Words(plain["text"], plain["crash"]) if isinstance(plain, dict) else tuple(plain)
