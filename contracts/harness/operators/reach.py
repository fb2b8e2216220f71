"""Which cases of one process execute which lines of the reference: recorded once for a source, and kept in a file.

A line that runs in another process (a command, a rank, a fork of the reference's own) is not seen.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

FILE = "reach.json"
LIKELY_S = 4.5  # twenty cases of the likeliest contracts for a change
CONTRACT_S = 60.0  # what of a contract is recorded by then counts; tracing makes it up to three times as slow


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Item → seconds it took and, file by file, the lines of the reference that it executed. Items that hold alone."""

    content: str
    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, frozenset[int]]]

    def of(self, change: Change) -> list[Item]:
        """The cases that may see a change, the likeliest first: those that do little else, each contract in turn.

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
        ranked = []
        for name in sorted(here, key=here.__getitem__):
            item = item_of(name)
            turn[item.id] = turn.get(item.id, -1) + 1
            ranked.append((turn[item.id], here[name], item))
        return [item for *_, item in sorted(ranked, key=lambda each: each[:2])]


def item_of(name: str) -> Item:
    """The item that prints so."""
    id, _, case = name.partition("[")
    return Item(id=id, case=case.removesuffix("]"))


def asked(law: Law) -> Iterator[Contract]:
    """The contracts that one process puts to a stack in some seconds."""
    for contract in law.contracts.values():
        if contract.tier == "unit" and not contract.slow and not contract.of_the_court:
            yield contract


@functools.cache
def content() -> str:
    """SHA-256 over what decides which lines run: the reference, the checks, and what both stand on."""
    root = Path(contracts.__file__).parent
    found = hashlib.sha256()
    for part in ("checks", "instruments", "spec", "stacks/reference"):
        for path in sorted((root / part).rglob("*.py")):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def reach(law: Law, folder: Path, tell: Any = None) -> Reach:
    """The reach of the law's contracts, read from the folder or recorded there, contract by contract."""
    parts = folder / f"reach-{content()[:12]}"
    parts.mkdir(parents=True, exist_ok=True)
    every = [*asked(law)]
    for number, contract in enumerate(every):
        part = parts / f"{contract.id}.json"
        if not part.exists():
            if tell:
                tell(f"reach: {contract.id} ({number + 1} of {len(every)})")
            rows = forked(functools.partial(_recorded, contract), seconds=CONTRACT_S)
            write_whole(part, json.dumps(rows))
    seconds: dict[str, float] = {}
    lines: dict[str, dict[str, frozenset[int]]] = {}
    for contract in every:
        for row in json.loads((parts / f"{contract.id}.json").read_text(encoding="utf-8")):
            seconds[row["item"]] = row["seconds"]
            lines[row["item"]] = {name: frozenset(each) for name, each in row["lines"].items()}
    return Reach(content=content(), seconds=seconds, lines=lines)


def likely(law: Law) -> Reach:
    """What `reach` would tell if each case of the likeliest contracts of a file executed all of it in some seconds.

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
    """Lines of the reference that run in this process, in whatever thread. Calls elsewhere cost one look-up."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = {}
        self._of: dict[CodeType, Any] = {}

    def __enter__(self) -> _Lines:
        threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in self._of:
            self._of[code] = self._tracer(code.co_filename)
        return self._of[code]

    def _tracer(self, file: str) -> Any:
        if not file.startswith(f"{ROOT}/"):
            return None
        lines = self.lines.setdefault(file.removeprefix(f"{ROOT}/"), set())

        def each(frame: FrameType, event: str, _: Any) -> Any:
            lines.add(frame.f_lineno)
            return each

        return each
