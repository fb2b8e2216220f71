"""How far a run is, shown on stderr while it works: items done and planned, what is red, the time to go.

It is read from the lines that a run writes as each item ends, so one reader serves one process, several, and several
ranks; whoever judges is not slowed down. On a terminal it is one line in place; in a log, a line now and then; with
RANKPROOF_PROGRESS=0 nothing. It has no colour.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from contracts.court import record
from contracts.spec.records import Kill, Result

FIRST_S, EVERY_S = 5.0, 30.0  # in a log; a run that ends sooner needs no line there
LOOK_S = 0.2
GREEN = frozenset({"holds", "deviates", "not offered", "untested", "killed"})
WATCHED = "progress.jsonl"  # where those write who write no record
_TOTAL = "planned"


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
        self._file = file
        self._stream = stream if stream is not None else sys.stderr
        self._in_place = self._stream.isatty() and os.environ.get("TERM", "") != "dumb"
        self._over = threading.Event()
        self._lines = _Lines(file)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._count = _Count()

    def __enter__(self) -> Progress:
        self._count.started = time.monotonic()
        if os.environ.get("RANKPROOF_PROGRESS") != "0":
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if not self._thread.is_alive():
            return
        self._thread.join()
        if self._in_place:
            self._say("\r\x1b[K")  # the line has done its duty, and the verdict follows

    def _watch(self) -> None:
        told, due, lines = "", FIRST_S, self._lines
        while not self._over.wait(LOOK_S):
            further, anew = lines.further()
            if anew:
                self._count.restart()
            for line in further:
                self._count.add(line)
            now = time.monotonic() - self._count.started
            if self._in_place:
                words = self._count.words(now)
                if words != told:
                    self._say(f"\r\x1b[K{words[: shutil.get_terminal_size().columns - 1]}")
                    told = words
            elif now >= due:
                self._say(f"{self._count.words(now)}\n")
                due = now + EVERY_S

    def _say(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a terminal that was closed must not end the run
            self._over.set()


class _Count:
    """What the lines so far say."""

    def __init__(self) -> None:
        self.started = 0.0
        self.restart()

    def restart(self) -> None:
        """Nothing is done yet."""
        self._total = 0
        self._fates = Counter[str]()
        self._latest = ""
        self._begun = 0.0  # when the first item was done: loading the stack and torch is no measure of what is left

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
                self._begun = self._begun or time.monotonic()

    def words(self, elapsed_s: float) -> str:
        if not self._total:
            return f"rankproof: preparing, {_time(elapsed_s)}"
        done = self._fates.total()
        parts = [f"rankproof: {done} of {self._total}"]
        parts += [f"{number} {fate}" for fate, number in sorted(self._fates.items()) if fate not in GREEN]
        parts.append(_time(elapsed_s))
        since = time.monotonic() - self._begun
        if 1 < done < self._total <= 50 * done and since >= 1:  # the slowest come first
            parts.append(f"about {_time(since * (self._total - done) / (done - 1))} to go")
        if self._latest:
            parts.append(self._latest)
        return ", ".join(parts)


class _Lines:
    """The lines of a file as they are written. What an older run left there is another file, and shows nothing."""

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
    """Of a file as it is; its number alone may be a new file's."""
    return at.st_dev, at.st_ino, at.st_mtime_ns


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
