"""The journal of a session: what a restarted session need not run again, and which test was under way.

Only rank 0 writes JSON lines and flushes each: a test starts, its reports follow, it is done.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Report = dict[str, Any]  # what pytest_report_to_serializable makes of a TestReport


@dataclass(frozen=True, kw_only=True)
class Past:
    """The results of earlier attempts. The test `under_way` started and never ended; `begun` are its reports so far."""

    done: dict[str, list[Report]] = field(default_factory=dict)
    under_way: str | None = None
    begun: tuple[Report, ...] = ()

    def text(self) -> str:
        return json.dumps([self.done, self.under_way, self.begun])

    @classmethod
    def of(cls, text: str) -> Past:
        done, under_way, begun = json.loads(text)
        return cls(done=done, under_way=under_way, begun=tuple(begun))


def _said(why: str) -> None:
    """Nothing more to say."""


class Journal:
    """Written by rank 0 while the tests run. `lost` gets the reason if it can be written no more."""

    def __init__(self, path: Path, lost: Callable[[str], None] | None = None) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lost = lost

    def start(self, nodeid: str) -> None:
        self._write({"start": nodeid})

    def report(self, nodeid: str, report: Report) -> None:
        self._write({"of": nodeid, "report": report})

    def done(self, nodeid: str) -> None:
        self._write({"done": nodeid})

    def close(self) -> None:
        with suppress(OSError):  # of what could not be written before
            self._file.close()

    def _write(self, entry: dict[str, object]) -> None:
        try:
            self._file.write(json.dumps(entry, default=str) + "\n")
            self._file.flush()
        except OSError as error:
            if self._lost is None:
                raise
            lost, self._lost = self._lost, _said  # once: the last page writes here too, while the process leaves
            lost(f"{self._file.name} cannot be written: {error.strerror}")


def read_journal(path: Path) -> Past:
    """What a journal says. A last line that was cut short, because its writer died, does not count."""
    done: dict[str, list[Report]] = {}
    under_way: str | None = None
    begun: list[Report] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name, ""), str) for name in ("start", "done")):
            continue
        if "start" in entry:
            under_way, begun = entry["start"], []
        elif "report" in entry:
            begun.append(entry["report"])
        elif "done" in entry:
            done[entry["done"]], under_way = begun, None
            begun = []
    return Past(done=done, under_way=under_way, begun=tuple(begun))
