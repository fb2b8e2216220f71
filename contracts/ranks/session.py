"""One rank's session: its parts, its beginning, and its two ways to end."""

import contextlib
import faulthandler
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.ranks import console, exit, groups, plugin_compatibility, rank_environment, reports
from contracts.ranks.agreement import Limits
from contracts.ranks.job import Job
from contracts.ranks.journal import Journal, Past, Report
from contracts.ranks.merge import VERDICT

PEERS_S = 5.0  # the time that the other ranks get to leave before rank 0


class Session:
    """What the hooks of a rank share, and the hooks for its beginning and end.

    `item` is the current test; `agreed_to_stop` says that all ranks leave before the first test.
    """

    def __init__(self, config: pytest.Config, here: rank_environment.Place) -> None:
        self.folder = rank_environment.folder(config.getoption("dist_out"), here.agent)
        here = replace(here, attempt=max(here.attempt, self.folder.attempts(here.rank)))
        self.config, self.here = config, here
        if here.attempt and self.folder.complete.exists():  # torchrun also restarts after an ordinary red session
            exit.leave_quietly(int(self.folder.complete.read_text()) if here.local_rank == 0 else 0)
        self.console = console.take(config, None if here.speaks else self.folder.log(here.rank, here.attempt))
        plugin_compatibility.own_basetemp(config, here.rank)
        if not here.speaks:
            plugin_compatibility.quieten(config)
        self.job = self._job(config.getoption("dist_backend"))
        self.limits = self.job.limits
        self.past = Past()
        self.journal: Journal | None = None
        self.session: pytest.Session | None = None
        self.item: pytest.Item | None = None
        self.agreed_to_stop = False
        self.code: int | None = None  # of the whole session, once it has ended on all ranks
        self.job.start()

    def _job(self, chosen_backend: str) -> Job:
        option = self.config.getoption
        try:
            self.backend = groups.backend_of(chosen_backend, self.here.local_size)
        except ValueError as error:
            raise pytest.UsageError(f"--dist-backend {chosen_backend} {error}") from None

        def chosen(name: str, gloo: float, other: float) -> float:
            value = option(name)
            return float(value) if value is not None else (gloo if self.backend.name == "gloo" else other)

        limits = Limits(
            test=chosen("dist_timeout", 60, 120), grace=chosen("dist_grace", 1, 5), hard=chosen("dist_hard", 10, 20)
        )
        restart = option("dist_recover") == "restart"
        return Job(self.here, self.folder, limits, backend=self.backend.name, restart_only=restart, speak=self._speak)

    def serialized(self, report: pytest.TestReport) -> Report:
        plain: Report = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        return {**plain, "longrepr": reports.words_of(report)}

    def lost_journal(self, why: str) -> None:
        self.job.end(f"{why}; give --dist-out a folder with space", restart=False)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session
        if self.config.pluginmanager.hasplugin("hypothesispytest"):
            plugin_compatibility.draw_alike(
                self.job.group.backend
            )  # after the chosen profile, on which this one is based
        self.job.recovery.watch_for_crashes()  # here, after pytest's own faulthandler plugin

    def pytest_report_header(self) -> list[str]:
        here, limits = self.here, self.limits
        words = (
            f"ranks: {here.size} over {self.job.group.backend}, seed {self.config.getoption('dist_seed')}, "
            f"limit {limits.test:g} s, attempt {here.attempt + 1} of {here.attempt + here.restarts_left + 1}, "
            f"logs in {self.folder.path}"
        )
        return [words, self.backend.words] if self.backend.words else [words]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if not self.agreed_to_stop:
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
        self.job.end_copy("the end of the session")  # it has no thread that faulthandler could wait for
        faulthandler.cancel_dump_traceback_later()
        code = int(self.session.exitstatus) if self.session is not None else 4
        if code == 0 and self.session is not None and self.session.testsfailed:
            code = int(pytest.ExitCode.TESTS_FAILED)  # whatever a plugin has made of it
        if copies := self.job.copies():
            console.say_raw(self.console, "\n".join(["ranks:", *copies, ""]))
            code = code or int(pytest.ExitCode.TESTS_FAILED)
        codes = self.job.exchange(str(code), limit=self.limits.end, name="end")
        self.code = int(codes[0]) or max(map(int, codes))
        if self.here.local_rank == 0:
            with contextlib.suppress(OSError):  # torchrun may start the ranks again then, for nothing
                self.folder.complete.write_text(str(self.code))
        self.job.close()
        if self.journal is not None:
            self.journal.close()

    def _speak(self, told: str, again: bool) -> None:
        """Print how this attempt ended; called in the thread that saw the end."""
        reason, _, _ = told.partition("\n")
        where = self.item.nodeid if self.item is not None else "between two tests"
        then = "torchrun starts the ranks again" if again else "nothing is run after it"
        console.say_raw(self.console, f"\nranks: {reason} ({where}); {then}; logs in {self.folder.path}\n")
        if again:
            return
        if not self.here.speaks or self.session is None:
            console.say_raw(self.console, told + "\n")
            return
        said = []
        if self.item is not None:
            verdict = {"outcome": "failed", "primary": -1, "words": reason, "recovery": "stopped"}
            said = reports.failure(self.item, told, reason, [(VERDICT, json.dumps(verdict))])
        console.finish(self.config, self.session, said, reason)
        exit.error_file(reason)

    def leave(self, code: int) -> int:
        """Leave in order: when the first process of a node exits with a code other than 0, torchrun ends the others.

        So local rank 0 of each node exits last, and only it carries the code of rank 0. Returns it.
        """
        code = code if self.code is None else self.code
        if self.here.local_rank != 0:
            exit.leave_quietly(0)
        deadline = time.monotonic() + PEERS_S
        here = [peer.rank for peer in self.job.recovery.peers.values() if peer.host == self.here.host]
        others = [rank for rank in here if rank != self.here.rank]
        while time.monotonic() < deadline and len(self.job.recovery.lost(others)) < len(others):
            time.sleep(0.01)
        if code and self.session is not None:
            exit.error_file(f"{self.session.testsfailed} of {self.session.testscollected} tests failed")
        exit.through(code, final=True)
        return code


def wanted(item: pytest.Item, size: int) -> int:
    """The number of ranks that a test's marker asks for; all by default."""
    said = _marked(item)
    return int(said.get("world", said.get("ranks", size)))


def world_of(item: pytest.Item, size: int) -> int:
    """The size of the default group that a test's marker asks for; all ranks by default."""
    return int(_marked(item).get("world", size))


def _marked(item: pytest.Item) -> Mapping[str, Any]:
    marker = item.get_closest_marker("dist")
    return {} if marker is None else marker.kwargs
