"""Which cases of one process execute which lines of the reference: recorded once for a source, and kept in a file.

A line that runs in another process (a command, a rank, a fork of the reference's own) is not seen.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import contracts
from contracts.contract import Contract, Law
from contracts.court.judge import judge
from contracts.harness import parties
from contracts.harness.operators.cells import likely as about
from contracts.harness.operators.changes import ROOT, Change, files
from contracts.harness.operators.forked import forked
from contracts.instruments.atomic_write import write_whole
from contracts.spec.records import Item

ROOT_OF_ALL = Path(contracts.__file__).parent
LAW = ("law", "bringup/law")
CHECKS = ("contracts.law.", "contracts.bringup.law.")
SHARED = ("instruments", "spec", "stacks/reference")  # what every check stands on
LIKELY_S = 4.5  # twenty cases of the likeliest contracts for a change
SLOW_S = 15.0
FIRST = 8  # cases of each contract about a file, before those of any other
CONTRACT_S = 60.0  # what of a contract is recorded by then counts; tracing makes it up to three times as slow


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Item → seconds it took and, file by file, the lines of the reference that it executed; only items that hold."""

    content: str
    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, frozenset[int]]]

    def of(self, change: Change) -> list[Item]:
        """The cases that may see a change, the likeliest first: some of those about its file, then those that do
        little else, each contract in turn.

        A line that runs at import is everyone's who executes any of its file.
        """
        first, last = change.lines
        wanted = frozenset(range(first, last + 1))
        here = {
            name: self.seconds[name] * sum(map(len, files.values()))
            for name, files in self.lines.items()
            if change.file in files and (not change.scope or files[change.file] & wanted)
        }
        turn: dict[str, int] = {}
        near = {*about(change.file)}
        ranked = []
        for name in sorted(here, key=here.__getitem__):
            item = item_of(name)
            turn[item.id] = turn.get(item.id, -1) + 1
            first = item.id in near and turn[item.id] < FIRST
            ranked.append((not first, turn[item.id], here[name], item))
        return [item for *_, item in sorted(ranked, key=lambda each: each[:3])]

    def near(self, law: Law, change: Change) -> list[Item]:
        """Some cases of each contract of one process about a file, the slow ones too, each contract in turn."""
        of = [[Item(id=id, case=case) for case in law.contracts[id].asked][:FIRST] for id in about(change.file)]
        return [item for row in zip_longest(*of) for item in row if item]

    def cost(self, item: Item) -> float:
        """The seconds that a case took, or those of a slow one, which none was recorded of."""
        return self.seconds.get(str(item), SLOW_S)


def item_of(name: str) -> Item:
    """The item that prints so."""
    id, _, case = name.partition("[")
    return Item(id=id, case=case.removesuffix("]"))


def asked(law: Law) -> Iterator[Contract]:
    """The contracts that one process puts to a stack in some seconds."""
    for contract in law.contracts.values():
        if contract.tier == "unit" and not contract.slow:
            yield contract


@functools.cache
def content() -> str:
    """SHA-256 over what decides which lines run: the reference, the checks, and what both stand on."""
    return _digest(
        path for part in (*LAW, *SHARED) for path in (ROOT_OF_ALL / part).rglob("*.py") if "_bugs" not in str(path)
    )


@functools.cache
def basis(id: str) -> str:
    """The same over what decides it for one contract: of the checks its own file, and those that are imported there.

    Results found with it are valid as long as it is the same, whatever is added to the law.
    """
    from contracts.contract import LAW

    if id not in LAW.contracts:
        return ""
    left, seen = [Path(LAW.contracts[id].check.__code__.co_filename)], set[Path]()
    while left:
        file = left.pop()
        if file not in seen:
            seen.add(file)
            left += _checks_behind(file)
    return _digest(seen, _shared())


@functools.cache
def _shared() -> str:
    return _digest(path for part in SHARED for path in (ROOT_OF_ALL / part).rglob("*.py"))


@functools.cache
def _checks_behind(file: Path) -> tuple[Path, ...]:
    """The files of the checks that a file imports."""
    names = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    places = [ROOT_OF_ALL.parent.joinpath(*name.split(".")) for name in names if name.startswith(CHECKS)]
    return tuple(
        path for place in places for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()
    )


def _digest(paths: Iterable[Path], before: str = "") -> str:
    found = hashlib.sha256(before.encode())
    for path in sorted(paths):
        found.update(path.relative_to(ROOT_OF_ALL).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def reach(law: Law, folder: Path, tell: Any = None) -> Reach:
    """The reach of the law's contracts, read from the folder or recorded there, contract by contract: only of those
    that stand on other files than when they were recorded.
    """
    folder = folder / "reach"
    folder.mkdir(parents=True, exist_ok=True)
    every = [*asked(law)]
    parts = {contract.id: folder / f"{contract.id}-{basis(contract.id)[:12]}.json" for contract in every}
    for number, contract in enumerate(every):
        part = parts[contract.id]
        if not part.exists():
            for stale in folder.glob(f"{contract.id}-*.json"):
                stale.unlink()
            if tell:
                tell(f"reach: {contract.id} ({number + 1} of {len(every)})")
            rows = forked(functools.partial(_recorded, contract), seconds=CONTRACT_S)
            write_whole(part, json.dumps(rows))
    seconds: dict[str, float] = {}
    lines: dict[str, dict[str, frozenset[int]]] = {}
    for contract in every:
        for row in json.loads(parts[contract.id].read_text(encoding="utf-8")):
            seconds[row["item"]] = row["seconds"]
            lines[row["item"]] = {name: frozenset(each) for name, each in row["lines"].items()}
    return Reach(content=content(), seconds=seconds, lines=lines)


def likely(law: Law) -> Reach:
    """What `reach` would report if each case of the likeliest contracts of a file executed all of it in some seconds.

    Nothing is recorded for it. A change may survive because none of them executes its line.
    """
    known = {each.id for each in asked(law)}
    lines: dict[str, dict[str, frozenset[int]]] = {}
    for file in files():
        every = frozenset(range(1, 1 + len((ROOT / file).read_bytes().splitlines())))
        for id in (id for id in about(file) if id in known):
            for case in law.contracts[id].cases:
                lines.setdefault(str(Item(id=id, case=case)), {})[file] = every
    return Reach(content=f"{content()} likely", seconds=dict.fromkeys(lines, LIKELY_S), lines=lines)


def _recorded(contract: Contract) -> Iterator[dict[str, Any]]:
    subject = parties.load("reference")
    helping = [party for _, party in parties.assistants(subject, (), quick=True)]
    for case in contract.asked:
        started = time.perf_counter()
        with _Lines() as seen:
            result = judge(contract, case, subject, helping)
        if result.outcome == "holds":
            took = round(time.perf_counter() - started, 4)
            yield {"item": str(result.item), "seconds": took, "lines": {k: sorted(v) for k, v in seen.lines.items()}}


class _Lines:
    """Lines of the reference that run in this process, in whatever thread.

    Calls elsewhere cost one look-up, and so do those of a function whose every line has run.
    """

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = {}
        self._here: dict[str, bool] = {}
        self._left: dict[int, tuple[CodeType, set[int], Any]] = {}

    def __enter__(self) -> _Lines:
        threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        file = code.co_filename  # a string keeps its hash; a code object reckons it anew
        here = self._here.get(file)
        if here is None:
            here = self._here[file] = file.startswith(f"{ROOT}/")
        if not here:
            return None
        if id(code) not in self._left:
            self._left[id(code)] = self._tracer(code)
        _, left, tracer = self._left[id(code)]
        return tracer if left else None

    def _tracer(self, code: CodeType) -> tuple[CodeType, set[int], Any]:
        lines = self.lines.setdefault(code.co_filename.removeprefix(f"{ROOT}/"), set())
        told = [line for *_, line in code.co_lines() if line is not None]
        left = {*(told[1:] or told)}  # the first is the head, which is called and does not run, or the only one

        def each(frame: FrameType, event: str, _: Any) -> Any:
            lines.add(frame.f_lineno)
            left.discard(frame.f_lineno)
            return each

        return code, left, each
