"""Runs a check in a process of its own, so that a stack which ends its process is not taken for a verdict.

`os._exit(0)` in a stack, or a crash in its native code, would otherwise end the gate with the stack's own exit code.
Here an exit code counts only if the gate itself wrote it to a pipe.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import NoReturn

from contracts.harness.ranks import guard
from contracts.harness.ranks.guard_program import heard_here
from contracts.spec.records import EXIT_CODES

STOP_S = 8.0  # what a process that is stopped from outside gets, ranks and all, before it is killed


class Ended(Exception):
    """The process ended without a verdict."""


class Stopped(Ended):
    """It was stopped by a signal from outside. `exit_code` is what a shell makes of that."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name} before there was a verdict")
        self.exit_code = 128 + number


def supervised(work: Callable[[], int], meanwhile: AbstractContextManager[object] | None = None) -> int:
    """The exit code that `work` returns, run in a forked copy of this process, behind a guard.

    The guard ends whatever `work` has started: once it is over, where this process is told to stop, and where this
    process is killed.

    `meanwhile` is entered here, once there is the copy, and left when it has ended: what it starts is not copied.

    Raises:
        Ended: when the copy ended before `work` returned, however it ended; `Stopped` where this process was told to.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(reading)
        guard.stand_between(parent=parent, tree=True, patience_s=STOP_S)
        _work(work, writing)
    os.close(writing)
    with _stopping(child) as stopped, meanwhile or nullcontext():
        _, status = os.waitpid(child, 0)
    os.set_blocking(reading, False)  # a process that the stack left behind may still hold the other end
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        said = pipe.read(1)
    if stopped and (not said or said[0] == EXIT_CODES["broken"]):
        raise Stopped(stopped[0])
    if not said:
        code = os.waitstatus_to_exitcode(status)
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        raise Ended(f"the process ended with {how} before there was a verdict")
    return said[0]


@contextmanager
def _stopping(child: int) -> Iterator[list[signal.Signals]]:
    """Where this process is told to stop, stop the child instead; its guard ends all that comes from it."""
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


def _work(work: Callable[[], int], writing: int) -> NoReturn:
    try:
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(writing, bytes([code]))
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # nobody listens any more
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)  # neither the stack's threads nor its exit handlers have a word in it
