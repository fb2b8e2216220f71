"""Runs a check in a process of its own, so that a stack which ends its process, or never returns, is not taken for a
verdict.

`os._exit(0)` in a stack, or a crash in its native code, would otherwise end the gate with the stack's own exit code.
Here an exit code counts only with a secret that was drawn for this run, which no stack says by accident: a byte on a
pipe is no verdict. A stack that shares this process's memory could read the secret; docs/gate.md shows where the
boundary of trust is. The caller confirms a verdict by the record as well.

The supervisor also ends what the alarm of a case does not: it reads from `contracts.court.heartbeat` what is asked.
"""

import os
import secrets
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NoReturn

from contracts.court import heartbeat, record
from contracts.harness.child_process import send
from contracts.instruments import accelerator
from contracts.ranks import guard
from contracts.ranks.guard_program import descendants, heard_here
from contracts.spec.records import EXIT_CODES

LOOK_S = 0.25
NUDGE_S = 1.0  # after a deadline: the alarm again, in case that the stack has put out the timer
JUDGE = "judge"  # the file that names the process which works
QUIET_S = 900.0  # without a word from any process: far more than collecting, starting ranks or drawing a report takes
STOP_S = 8.0  # what a process that is stopped from outside gets, ranks and all, before it is killed


class Ended(Exception):
    """The process ended without a verdict."""


class Stopped(Ended):
    """It was stopped by a signal from outside. `exit_code` is what a shell makes of that."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name} before there was a verdict")
        self.exit_code = 128 + number


def grace(seconds: float) -> float:
    """Seconds that a deadline of so many may be exceeded, for the alarm to be heard in native code."""
    return max(3.0, min(30.0, seconds))


def supervised(
    work: Callable[[], int], meanwhile: AbstractContextManager[object] | None = None, *, deadline_s: float = 300.0
) -> int:
    """The exit code that `work` returns, run in a forked copy of this process, under a guard.

    The guard ends whatever `work` has started: once it is over, where this process is told to stop, and where this
    process is killed.

    Args:
        meanwhile: entered here, once there is the copy, and left when it has ended: what it starts is not copied.
        deadline_s: what one case may take. One that takes longer by `grace` ends its process.

    Raises:
        Ended: when the copy ended before `work` returned, however it ended; `Stopped` where this process was told to.
    """
    reading, writing = os.pipe()
    token = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory(prefix="rankproof-") as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            os.close(reading)
            record.let_go()
            guard.stand_between(parent=parent, tree=True, patience_s=STOP_S)
            os.environ[heartbeat.FOLDER] = folder
            accelerator.ask_nvml()  # what is judged is asked in forks of this process
            Path(folder, JUDGE).write_text(str(os.getpid()))
            _work(work, writing, token)
        os.close(writing)
        watch = _Watch(child, Path(folder), grace(deadline_s))
        with stopping(child) as stopped, meanwhile or nullcontext():
            status = watch.wait()
        watch.look_back()
    os.set_blocking(reading, False)  # a process that the stack left behind may still hold the other end
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        said = pipe.read(len(token) + 2) or b""
    proved = said[:-1] == token
    if stopped and (not proved or said[-1] == EXIT_CODES["broken"]):
        raise Stopped(stopped[0])
    if not proved:
        raise Ended(watch.why(status))
    return said[-1]


class _Watch:
    """Waits for the copy, and ends what takes longer than it may."""

    def __init__(self, child: int, folder: Path, grace_s: float) -> None:
        self._why = self._nudged = self._asked = ""
        self._child, self._folder, self._grace_s = child, folder, grace_s
        self._heard = time.monotonic()

    def wait(self) -> int:
        """The exit status of the copy."""
        try:
            ended = os.pidfd_open(self._child)
        except OSError:  # a kernel without it
            return self._polled()
        with os.fdopen(ended) as descriptor:
            while True:
                with suppress(KeyboardInterrupt):  # the terminal sent it to the copy as well, which closes its files
                    if select.select([descriptor], [], [], LOOK_S)[0]:
                        return os.waitpid(self._child, 0)[1]
                    self._look()

    def _polled(self) -> int:
        while True:
            with suppress(KeyboardInterrupt):
                pid, status = os.waitpid(self._child, os.WNOHANG)
                if pid:
                    return status
                time.sleep(LOOK_S)
                self._look()

    def look_back(self) -> None:
        """What the process that worked was asked when it ended."""
        with suppress(OSError, ValueError):
            beat = heartbeat.last(self._folder, self._judge())
            self._asked = beat.what if beat.due else ""

    def why(self, status: int) -> str:
        """Why the copy ended without a verdict, in words."""
        code = os.waitstatus_to_exitcode(status)
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        late = f"no answer in time to {self._nudged}: " if code == -signal.SIGALRM and self._nudged else ""
        asked = f"; it was asked {self._asked}" if self._asked else ""
        return self._why or f"{late}the process ended with {how} before there was a verdict{asked}"

    def _look(self) -> None:
        now = time.monotonic()
        beats = heartbeat.read(self._folder)
        self._heard = max([self._heard, *(max(beat.at, beat.due) for beat in beats)])
        for beat in beats:
            if beat.due and now > beat.due + self._grace_s:
                self._end(beat.pid, f"no answer in time to {beat.what}, and the alarm did not interrupt it")
            elif beat.due and now > beat.due + NUDGE_S:
                self._nudged = beat.what
                send(signal.SIGALRM, {beat.pid})
        if now > self._heard + QUIET_S:
            self._end(self._child, f"the process was silent for {QUIET_S:g} s, with no question pending")

    def _judge(self) -> int:
        """The process that works, which need not be the child itself."""
        with suppress(OSError, ValueError):
            return int((self._folder / JUDGE).read_text())
        return self._child

    def _end(self, pid: int, why: str) -> None:
        """Kill a process that judges, with all that it started."""
        ours = descendants(self._child)
        if pid in (self._child, self._judge()):
            self._why = f"{why}: the process was ended"
            send(signal.SIGKILL, {self._child, *ours})
        elif pid in ours:  # and not another one that has its number by now
            sys.stderr.write(f"rankproof: {why}: process {pid} was ended\n")
            send(signal.SIGKILL, {pid, *descendants(pid)})
        (self._folder / str(pid)).unlink(missing_ok=True)


@contextmanager
def stopping(child: int) -> Iterator[list[signal.Signals]]:
    """If this process is told to stop, stop the child instead; its guard ends all that comes from it."""
    stopped: list[signal.Signals] = []

    def stop(number: int, _: object) -> None:
        stopped.append(signal.Signals(number))
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in heard_here()}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(work: Callable[[], int], writing: int, token: bytes) -> NoReturn:
    try:
        signal.signal(signal.SIGALRM, _unheard)
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(writing, token + bytes([code]))
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # nobody listens any more
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)  # neither the stack's threads nor its exit handlers have a word in it


def _unheard(signum: int, frame: object) -> None:
    """A second alarm that comes when the case is over. To ignore the signal would be inherited by every command."""
