"""Runs a command as a child of the launcher: keeps its output without secrets, forwards signals, reports how it
ended."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from contracts.ranks import guard
from contracts.ranks.guard_program import descendants
from contracts.spec.redaction import LineRedactor

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LONGEST_LINE = 1 << 20  # bytes; a progress bar without a newline must not fill the memory
LAST_LINES, LAST_CHARACTERS = 20, 2000
ELASTIC_LINES = 40  # of torchrun's summary, which names no error of a rank
_SUMMARY = re.compile(r"^E\d{4} \S+ \d+ torch/distributed/elastic/.*", re.MULTILINE)
DRAIN_S = 2.0  # seconds for the pipe to run dry


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
        self.grace_s = grace_s
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
            self._timer = threading.Timer(self.grace_s, self._kill, (self._child.pid,))
            self._timer.daemon = True
            self._timer.start()

    def _kill(self, pid: int) -> None:
        send(signal.SIGKILL, {pid, *descendants(pid)})


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
    echo: Callable[[str], object], folder: Path | None = None,
) -> Ended:  # fmt: skip
    """Run a command to its end, in a process group of its own; everything it prints goes redacted to `log` and `echo`.

    Behind a guard, which ends what the command leaves behind (torchrun starts each worker in a session of its own), and
    all of it where this process is killed.

    A command that cannot be started ends as it would in a shell, with 127 and the reason as its last words.
    """
    keeper = _Keeper(log, known, echo)
    if stop.first is not None:
        keeper.keep(f"stopped by {stop.first.name} before it was started\n")
        return Ended(exit_code=-stop.first, stopped_by=stop.first, last_words=keeper.last_words())
    child = subprocess.Popen(
        guard.command(command, patience_s=stop.grace_s), env=dict(env), cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    stop.attach(child)
    assert child.stdout is not None
    reader = threading.Thread(target=keeper.drain, args=(child.stdout,), daemon=True)
    reader.start()
    code = child.wait()
    stop.detach()
    reader.join(DRAIN_S)
    return Ended(exit_code=code, stopped_by=stop.first, last_words=keeper.last_words())


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
        self._last: deque[str] = deque(maxlen=LAST_LINES + ELASTIC_LINES)
        self._whole = True

    def drain(self, pipe: BinaryIO) -> None:
        with pipe:
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
        """The last lines, without the summary with which torchrun ends."""
        text = re.sub(r"\n{2,}", "\n", "".join(self._last)).strip()
        with suppress(OSError):
            self._file.close()
        if "ChildFailedError" in text:
            begins = [found.start() for found in _SUMMARY.finditer(text)]
            text = text[: begins[-1]].strip() or text if begins else text
        return "\n".join(text.splitlines()[-LAST_LINES:])[-LAST_CHARACTERS:]
