"""How far a run is, shown on stderr while it works: items done and planned, what is red, the time to go.

It is read from the lines that a run writes as each item ends, so one reader serves one process, several, and several
ranks; whoever judges is not slowed down. On a terminal it is one line in place; in a log, a line now and then; with
RANKPROOF_PROGRESS=0 nothing. It has no colour.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from contracts.court import record
from contracts.spec.records import Kill, Result

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

FIRST_S, EVERY_S = 5.0, 30.0  # in a log; a run that ends sooner needs no line there
LOOK_S, WIDE = 0.2, 160
GREEN = frozenset({"holds", "deviates", "not offered", "untested", "killed"})
WATCHED = "progress.jsonl"  # where those write who write no record
_TOTAL = "planned"


def moves(stream: TextIO) -> bool:
    """Whether a line can be written over there."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


class Told:
    """Writes what a `Progress` reads, for runs that leave no record while they work."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def planned(self, items: int) -> None:
        self._add(json.dumps({_TOTAL: items}))

    def __call__(self, judged: Result | Kill) -> None:
        self._add(record.line(judged))

    def _add(self, text: str) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


class Progress:
    """Shows how far a run is that writes to `file`, which may come into being later. Enter it where that process is
    waited for, not in a process that will be copied: it starts a thread."""

    def __init__(self, file: Path, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._lines, self._over = _Lines(file), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Progress:
        if os.environ.get("RANKPROOF_PROGRESS") != "0":
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        in_place = moves(self._stream)
        began = time.monotonic()
        if not in_place and self._over.wait(FIRST_S):
            return
        with suppress(OSError, ValueError):  # a terminal that was closed must not end the run
            bar = _bar(self._stream, in_place=in_place)
            bar.tasks[0].start_time = began
            with bar if in_place else nullcontext():  # the line has done its duty in the end, and the verdict follows
                self._follow(bar, in_place)

    def _follow(self, bar: Bar, in_place: bool) -> None:
        count, due = _Count(), 0.0
        if in_place:
            bar.console.show_cursor()  # also where this process is killed
        while True:
            further, anew = self._lines.further()
            count = _Count() if anew else count
            for line in further:
                count.add(line)
            bar.update(bar.tasks[0].id, **count.shown())
            if in_place:
                bar.refresh()
            elif time.monotonic() >= due:
                bar.console.print(bar.get_renderable())
                due = time.monotonic() + EVERY_S
            if self._over.wait(LOOK_S):
                return


def _bar(stream: TextIO, *, in_place: bool) -> Bar:
    """The columns of the line, and one task."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(file=stream, color_system=None, force_terminal=in_place, width=None if in_place else WIDE)
    columns = [TextColumn("{task.description}", markup=False), TimeElapsedColumn(), TimeRemainingColumn()]
    columns += [TextColumn("{task.fields[latest]}", markup=False)]
    bar = Bar(
        *columns, console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    bar.add_task("rankproof: preparing", total=None, latest="")
    return bar


class _Count:
    """What the lines so far say."""

    def __init__(self) -> None:
        self._total, self._latest, self._fates = 0, "", Counter[str]()

    def add(self, line: str) -> None:
        try:
            entry: Mapping[str, Any] = json.loads(line) if line else {}
        except ValueError:
            return
        for kind, told in entry.items():
            if kind == _TOTAL:
                self._total = told
            elif kind == "plan":
                self._total = len(told["items"])
            elif kind in ("result", "kill"):
                self._fates[told.get("outcome") or told["fate"]] += 1
                self._latest = f"{told.get('id') or told['of']}[{told['case']}]"

    def shown(self) -> dict[str, Any]:
        """The columns of the line. There is a time to go after a fiftieth: the slowest come first."""
        done = self._fates.total()
        words = [f"rankproof: {done} of {self._total}" if self._total else "rankproof: preparing"]
        words += [f"{number} {fate}" for fate, number in sorted(self._fates.items()) if fate not in GREEN]
        total = self._total if 0 < self._total <= 50 * done else None
        latest = f"to go, {self._latest}" if total else self._latest
        return {"description": ", ".join(words), "completed": done, "total": total, "latest": latest}


class _Lines:
    """The lines of a file as they are written. An older run's record is another file, and is not shown."""

    def __init__(self, file: Path) -> None:
        self._file, self._known = file, (-1, -1)
        self._older = _identity(file.stat()) if file.exists() else None
        self._position, self._rest = 0, b""

    def further(self) -> tuple[list[str], bool]:
        """The lines since the last time, and whether they begin anew."""
        anew = False
        try:
            with self._file.open("rb") as opened:
                at = os.fstat(opened.fileno())
                if _identity(at) == self._older:
                    return [], False
                if (at.st_dev, at.st_ino) != self._known or at.st_size < self._position:
                    self._known, self._position, self._rest = (at.st_dev, at.st_ino), 0, b""
                    anew = True
                opened.seek(self._position)
                data = opened.read()
        except OSError:  # not yet, or not any more: a finished record has another name
            return [], False
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines], anew


def _identity(at: os.stat_result) -> tuple[int, int, int]:
    """Of a file as it is; its number by itself may be a new file's."""
    return at.st_dev, at.st_ino, at.st_mtime_ns
