"""What the ranks run, agreed on before the first test: the same tests in one order, with equal versions and settings.

After a restart, they run what the journal of earlier attempts does not hold yet.
"""

import gc
import hashlib
import json
import os
import platform
from collections.abc import Generator
from dataclasses import replace
from importlib import metadata

import pytest

from contracts.ranks import console, plugin_compatibility, recovery, reports
from contracts.ranks.agreement import differences
from contracts.ranks.journal import Journal, Past, read_journal
from contracts.ranks.merge import VERDICT
from contracts.ranks.rank_environment import EQUAL
from contracts.ranks.session import Session, wanted, world_of

ENVIRONMENT = ("NCCL_", "TORCH_", "PYTORCH_", "CUBLAS_", "CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS")
VERSIONS = ("torch", "pytest", "numpy", "hypothesis")


class Collection:
    """The hooks from collection to the first test."""

    def __init__(self, ranks: Session) -> None:
        self.ranks, self.config, self.here, self.job = ranks, ranks.config, ranks.here, ranks.job
        self._faults: dict[str, str] = {}
        self._replayed: list[pytest.Item] = []
        self._charged = ""  # the test under way when the attempt before ended: nobody has reported it yet

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._faults[report.nodeid] = str(report.longrepr)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if item.get_closest_marker("dist") is None]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item.get_closest_marker("dist") is not None]
        for item in items:
            ranks = wanted(item, self.here.size)
            if ranks > self.here.size:
                item.add_marker(pytest.mark.skip(reason=f"needs {ranks} ranks, and there are {self.here.size}"))
        items.sort(key=lambda item: world_of(item, self.here.size))  # each change of the world size costs a new group

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Agree on tests, versions and settings; then resume, and make the process group."""
        gc.freeze()  # garbage collections skip what was imported: torch alone has 250 000 objects
        gc.enable()
        ids = [item.nodeid for item in session.items]
        views = [json.loads(view) for view in self._say_all(json.dumps(self._view(ids)), "collection")]
        self.job.meet_all()
        found = differences(views)
        if found:
            self._stop_before_the_first_test(ids, found)
        if self._faults or self.config.option.collectonly or not ids:
            self.ranks.agreed_to_stop = True
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
        equal = self.config.stash.get(EQUAL, {})
        return {
            "tests": len(ids),
            "tests' ids": hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16],
            **{f"collection of {nodeid}": text for nodeid, text in self._faults.items()},
            "python": platform.python_version(),
            **{package: _version(package) for package in VERSIONS},
            **equal,
            "backend": self.job.group.backend,
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
        self.ranks.agreed_to_stop = True
        pytest.exit("the ranks would not run the same tests in the same way:\n  " + "\n  ".join(found), returncode=4)

    def _say_all(self, mine: str, name: str) -> list[str]:
        return self.job.exchange(mine, limit=self.ranks.limits.collection, name=name)

    def _resume(self, session: pytest.Session) -> None:
        again = self.here.speaks and self.here.attempt > 0
        said = self._say_all(self._what_happened(session.items).text() if again else "", "past")
        self.ranks.past = Past.of(said[0]) if said[0] else Past()
        if self.here.speaks:
            self.ranks.journal = Journal(self.ranks.folder.journal, self.ranks.lost_journal)
        self._replayed = [item for item in session.items if item.nodeid in self.ranks.past.done]
        session.items[:] = [item for item in session.items if item.nodeid not in self.ranks.past.done]

    def _what_happened(self, items: list[pytest.Item]) -> Past:
        """The journal, in which the test that was under way counts as failed: it is not tried again."""
        past = read_journal(self.ranks.folder.journal)
        account = recovery.account(self.ranks.folder, self.here.attempt - 1, self.here.size)
        item = next((each for each in items if each.nodeid == past.under_way), None)
        if item is None:
            return self._after_a_test(past, account)
        self._charged = item.nodeid
        verdict = {"outcome": "failed", "primary": account.rank, "words": account.reason, "recovery": "restarted"}
        journal = Journal(self.ranks.folder.journal)
        for report in reports.failure(item, account.told(), account.reason, [(VERDICT, json.dumps(verdict))]):
            journal.report(item.nodeid, self.ranks.serialized(report))
        journal.done(item.nodeid)
        journal.close()
        return read_journal(self.ranks.folder.journal)

    def _after_a_test(self, past: Past, account: recovery.Account) -> Past:
        """Charge an end between two tests to the test before it, unless that one has failed already."""
        last = next(reversed(past.done), None)
        if last is None or any(report["outcome"] == "failed" for report in past.done[last]):
            return past
        end = {**past.done[last][-1], "outcome": "failed", "when": "teardown"}
        end["longrepr"] = {"text": account.told(), "crash": f"after the test: {account.reason}"}
        return replace(past, done={**past.done, last: [*past.done[last], end]})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        if not self.here.speaks:
            plugin_compatibility.forget(self.config)
        if self.ranks.past.done and not self.config.option.collectonly:
            # pytest refuses to start after a failure, unless this option says that it is intended.
            self.config.option.continue_on_collection_errors = True
            session.testscollected += len(self._replayed)  # what pytest's percentages are of
            old = [item for item in self._replayed if item.nodeid != self._charged]
            with console.unseen(self.config, f"{len(old)} tests were through before the restart"):
                self._replay(old)
            self._replay([item for item in self._replayed if item.nodeid == self._charged])
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
        return (yield)

    def _replay(self, items: list[pytest.Item]) -> None:
        for item in items:
            hook = item.ihook
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for plain in self.ranks.past.done[item.nodeid]:
                words = plain.get("longrepr")
                report = self.config.hook.pytest_report_from_serializable(
                    config=self.config, data={**plain, "longrepr": None}
                )
                report.longrepr = reports.from_words(words)
                hook.pytest_runtest_logreport(report=report)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
