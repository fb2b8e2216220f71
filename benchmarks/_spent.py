"""CPU time by item: as a pytest plugin (`-p benchmarks._spent`), or of whatever says when an item is done.

CPU time and not wall time: it is the same on a machine that does other work beside it. It is of this process and
of the processes that it has waited for, user and system.
"""

import contextlib
import functools
import importlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

FILE = "RANKPROOF_SPENT"  # a file to which the plugin appends a line a test
EVERY = "RANKPROOF_SPENT_EVERY"  # of each file, the plugin keeps each so-many-th test

# What is paid for again and again where nobody looks, and how to tell whether two calls do the same.
WATCHED: dict[str, tuple[str, Callable[..., str]]] = {
    "weights drawn": (
        "contracts.stacks.reference.model.init:Initializer.fill",
        lambda self, model, given=(): repr((self.recipe, sorted(given))),
    ),
    "training runs": (
        "contracts.stacks.reference.answers.training:TrainingAnswers.train",
        lambda self, session: f"{type(self).__name__} {hash(repr(session))}",
    ),
    "fresh interpreters for a compiler": (
        "contracts.stacks.reference.answers.compiling:_in_a_fresh_interpreter",
        lambda words, said: repr((words, said)),
    ),
}
Since = tuple[float, ...]
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn"})


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds of an item, and how many processes it started."""

    name: str
    own: float
    children: float
    wall: float
    starts: int
    of: int = 1
    """How many items this one stands for, where it was drawn from more."""

    @property
    def cpu(self) -> float:
        return self.own + self.children


@dataclass(kw_only=True)
class Calls:
    """Calls of a watched function, and the CPU seconds of those whose arguments were seen before."""

    number: int = 0
    seconds: float = 0.0
    again: float = 0.0
    seen: set[str] = field(default_factory=set)


class Meter:
    """Measures from one item to the next."""

    def __init__(self) -> None:
        self.calls: dict[str, Calls] = defaultdict(Calls)
        self._starts = 0
        sys.addaudithook(self._hear)
        self._from = self._now()

    def restart(self) -> None:
        """What was done until now belongs to no item."""
        self._from = self._now()

    def item(self, name: str, of: int = 1) -> Spent:
        """What was spent since the last item."""
        before, now = self._from, self._now()
        self._from = now
        own, children, wall, starts = (b - a for a, b in zip(before, now, strict=True))
        return Spent(name=name, own=own, children=children, wall=wall, starts=int(starts), of=of)

    def pause(self) -> Since:
        """The time until now belongs to the item under way; the time after it is another's, until `resume`."""
        before, self._from = self._from, self._now()
        return tuple(now - then for then, now in zip(before, self._from, strict=True))

    def resume(self, name: str, held: Since) -> Spent:
        """The time since `pause` returned `held`; from now on the time is the item's again."""
        spent = self.item(name)
        self._from = tuple(now - mine for now, mine in zip(self._from, held, strict=True))
        return spent

    def watch(self) -> None:
        """Count the calls of `WATCHED`. It imports torch."""
        for label, (where, key) in WATCHED.items():
            module, _, path = where.partition(":")
            *owners, name = path.split(".")
            owner = functools.reduce(getattr, owners, importlib.import_module(module))
            setattr(owner, name, self._counted(label, getattr(owner, name), key))

    def _counted(self, label: str, function: Callable[..., Any], key: Callable[..., str]) -> Callable[..., Any]:
        calls = self.calls[label]

        @functools.wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            own, children, *_ = self._now()
            try:
                return function(*arguments, **named)
            finally:
                now, theirs, *_ = self._now()
                same = key(*arguments, **named)
                calls.number += 1
                calls.seconds += now - own + theirs - children
                calls.again += (now - own + theirs - children) if same in calls.seen else 0.0
                calls.seen.add(same)

        return counted

    def _hear(self, event: str, _: object) -> None:
        self._starts += event in _STARTS

    def _now(self) -> Since:
        spent = os.times()
        own, children = spent.user + spent.system, spent.children_user + spent.children_system + _of_the_living()
        return own, children, time.monotonic(), float(self._starts)


def _of_the_living() -> float:
    """CPU seconds of the children that still run, such as one that is asked again and again, and of those that they
    waited for."""
    ticks = 0
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in _text(children).split():
            ticks += sum(map(int, _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _text(file: Path) -> str:
    """Nothing of a thread or process that ended meanwhile."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return file.read_text()
    return ""


_METER: list[Meter] = []
_OF: dict[str, int] = {}
"""Of each file of a sample, how many tests each that is kept stands for."""


def pytest_configure(config: pytest.Config) -> None:
    _METER[:] = [Meter()]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = int(os.environ.get(EVERY, "1"))
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[_file(item)].append(item)
    kept: set[pytest.Item] = set()
    for file, members in files.items():
        drawn = members[min(every, len(members)) // 2 :: every]
        kept.update(drawn)
        _OF[file] = round(len(members) / len(drawn))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    _write(_METER[0].item("collection"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """What is made once for many tests is no test's, so that a sample does not count it many times."""
    if fixturedef.scope == "function":
        return (yield)
    held = _METER[0].pause()
    try:
        return (yield)
    finally:
        _write(_METER[0].resume(f"{_file(request.node)}::fixture {fixturedef.argname}", held))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    done = yield
    _write(_METER[0].item(item.nodeid, _OF[_file(item)]))
    return done


def _file(node: pytest.Item | pytest.Collector) -> str:
    return node.nodeid.split("::", maxsplit=1)[0]


def _write(spent: Spent) -> None:
    # one write a line, so that the workers of xdist may share the file
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(spent)) + "\n")
