"""CPU time by item: as a pytest plugin (`-p benchmarks._spent`), or of whatever says when an item is done.

CPU time and not wall time: it is the same on a machine that does other work beside it. It is that of this process and
of the processes that it has waited for, user and system.
"""

from __future__ import annotations

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
        "contracts.stacks.reference.answers.compiling:_in_an_interpreter",
        lambda *words, **_: repr(words[:2]),
    ),
}
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn"})


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds of an item, and how many processes it started."""

    name: str
    own: float
    children: float
    wall: float
    starts: int

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

    def item(self, name: str) -> Spent:
        """What was spent since the last item."""
        before, now = self._from, self._now()
        self._from = now
        own, children, wall, starts = (b - a for a, b in zip(before, now, strict=True))
        return Spent(name=name, own=own, children=children, wall=wall, starts=int(starts))

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

    def _now(self) -> tuple[float, float, float, float]:
        spent = os.times()
        own, children = spent.user + spent.system, spent.children_user + spent.children_system
        return own, children, time.monotonic(), float(self._starts)


_METER: list[Meter] = []


def pytest_configure(config: pytest.Config) -> None:
    _METER[:] = [Meter()]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    _write(_METER[0].item("collection"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    done = yield
    _write(_METER[0].item(item.nodeid))
    return done


def _write(spent: Spent) -> None:
    # one write a line, so that the workers of xdist may share the file
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(spent)) + "\n")
