"""Runs a command as a child of the launcher: keeps its output without secrets, forwards signals, reports how it
ended."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from contracts.spec.redaction import LineRedactor

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LONGEST_LINE = 1 << 20  # bytes; a progress bar without a newline must not fill the memory
LAST_LINES, LAST_CHARACTERS = 20, 2000
DRAIN_S = 2.0  # seconds for what outlives its launcher to end, and for the pipe that it held to run dry
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
NOT_FOUND = 127  # what a shell says


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended: its exit code (negative: the signal), the signal that was forwarded to it if one was, and the
    last lines it printed, without secrets."""

    exit_code: int
    stopped_by: signal.Signals | None
    last_words: str


class Stop:
    """Receives SIGTERM, SIGINT and SIGHUP from the first moment on and hands them to the child once there is one."""

    def __init__(self, grace_s: float) -> None:
        self.first: signal.Signals | None = None
        self._grace_s = grace_s
        self._child: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.first is not None and self._child is None:
            sys.exit(128 + number)  # asked twice while there is nothing to stop
        self.first = self.first or signal.Signals(number)
        self._hand_on(signal.Signals(number))

    def attach(self, child: subprocess.Popen[bytes]) -> None:
        """From now on signals go to this child, also one that came before it was there."""
        self._child = child
        if self.first is not None:
            self._hand_on(self.first)

    def detach(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._child = None

    def _hand_on(self, number: signal.Signals) -> None:
        if self._child is None:
            return
        # To the launcher alone: torchrun stops its own workers, and a signal to both is counted twice.
        with suppress(ProcessLookupError):
            self._child.send_signal(number)
        if self._timer is None:
            self._timer = threading.Timer(self._grace_s, self._kill, (self._child.pid,))
            self._timer.daemon = True
            self._timer.start()

    def _kill(self, pid: int) -> None:
        tree = descendants(pid)  # while there is a parent to find them by
        send(signal.SIGKILL, {pid, *tree})


@contextmanager
def stoppable(grace_s: float) -> Iterator[Stop]:
    """While the block runs, the forwarded signals go to its `Stop` instead of ending this process. One that was ignored
    from the start stays ignored: `nohup` means it."""
    stop = Stop(grace_s)
    heard = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield stop
    finally:
        stop.detach()
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    command: tuple[str, ...], env: Mapping[str, str], log: Path, known: frozenset[str], stop: Stop,
    echo: Callable[[str], object],
) -> Ended:  # fmt: skip
    """Run a command to its end, in a process group of its own; everything it prints goes redacted to `log` and `echo`.

    A command that cannot be started ends as it would in a shell, with 127 and the reason as its last words.
    """
    keeper = _Keeper(log, known, echo)
    if stop.first is not None:
        keeper.keep(f"stopped by {stop.first.name} before it was started\n")
        return Ended(exit_code=-stop.first, stopped_by=stop.first, last_words=keeper.last_words())
    _adopt_orphans()
    others = descendants(os.getpid())
    try:
        child = subprocess.Popen(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        keeper.keep(f"{command[0]} cannot be started: {error.strerror}\n")
        return Ended(exit_code=NOT_FOUND, stopped_by=stop.first, last_words=keeper.last_words())
    stop.attach(child)
    assert child.stdout is not None
    reader = threading.Thread(target=keeper.drain, args=(child.stdout,), daemon=True)
    reader.start()
    code = child.wait()
    stop.detach()
    _end_what_is_left(others)
    reader.join(DRAIN_S)
    return Ended(exit_code=code, stopped_by=stop.first, last_words=keeper.last_words())


def _adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind: torchrun starts every worker in a session of its
    own, so neither its process group nor its death reaches them, and an orphan keeps the GPU and the port."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_what_is_left(others: set[int]) -> None:
    """End everything that a child has left behind: asked first, then killed. `others` were there before it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        send(number, descendants(os.getpid()) - others)
        patience = time.monotonic() + DRAIN_S
        while descendants(os.getpid()) - others and time.monotonic() < patience:
            time.sleep(0.02)


def descendants(pid: int) -> set[int]:
    """Every living process that descends from one, by /proc; a zombie holds nothing and does not count."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                # `pid (name, which may hold anything) state parent …`
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(") ")[2].split()[:2]
                if state not in "ZX":
                    parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    while grown := {each for each, parent in parents.items() if parent in found | {pid}} - found:
        found |= grown
    return found


def send(number: signal.Signals, pids: set[int]) -> None:
    """A signal to each of some processes, those that ended meanwhile left out."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class _Keeper:
    """Writes lines, redacted, to a log and to whoever watches, and remembers the last ones."""

    def __init__(self, log: Path, known: frozenset[str], echo: Callable[[str], object]) -> None:
        self._file = log.open("w", encoding="utf-8", buffering=1)
        self._redactor = LineRedactor(known)
        self._echo = echo
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._whole = True

    def drain(self, pipe: BinaryIO) -> None:
        for raw in iter(lambda: pipe.readline(LONGEST_LINE), b""):
            self._put(self._redactor.line(raw.decode("utf-8", "replace")))
        self._put(self._redactor.rest())

    def keep(self, line: str) -> None:
        self._put(self._redactor.line(line))

    def _put(self, clean: str) -> None:
        self._last.append(clean)
        # A full disk or a closed terminal must not stop the run, nor block it on a pipe that nobody reads.
        with suppress(OSError, ValueError):
            self._file.write(clean)
        with suppress(OSError, ValueError):
            self._echo(clean)

    def last_words(self) -> str:
        text = re.sub(r"\n{2,}", "\n", "".join(self._last)).strip()
        with suppress(OSError):
            self._file.close()
        return text[-LAST_CHARACTERS:]
