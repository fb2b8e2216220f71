"""Runs a check in a process of its own, so that a stack which ends its process is not taken for a verdict.

`os._exit(0)` in a stack, or a crash in its native code, would otherwise end the gate with the stack's own exit code.
Here an exit code counts only if the gate itself wrote it to a pipe.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn


class Ended(Exception):
    """The process ended without a verdict."""


def supervised(work: Callable[[], int], meanwhile: AbstractContextManager[object] | None = None) -> int:
    """The exit code that `work` returns, run in a forked copy of this process.

    `meanwhile` is entered here, once there is the copy, and left when it has ended: what it starts is not copied.

    Raises:
        Ended: when the copy ended before `work` returned, however it ended.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    with meanwhile or nullcontext():
        try:
            _, status = os.waitpid(child, 0)
        except KeyboardInterrupt:  # the terminal sent it to the copy as well, which is closing its files
            _, status = os.waitpid(child, 0)
    os.set_blocking(reading, False)  # a process that the stack left behind may still hold the other end
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        said = pipe.read(1)
    if not said:
        code = os.waitstatus_to_exitcode(status)
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        raise Ended(f"the process ended with {how} before there was a verdict")
    return said[0]


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
