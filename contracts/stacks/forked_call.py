"""Calls a function in a fork of this process: it takes milliseconds after a slow import, and leaves no state behind.

Standard library only. The process must not have started threads; a process that only imported torch has none.
"""

import contextlib
import gc
import os
import select
import signal
import sys
from collections.abc import Callable


class ForkDied(Exception):
    """The forked process ended without finishing its work."""


def exit_code(ended: BaseException | None) -> int:
    """The code with which an interpreter ends that this has ended; what it says about it is said too."""
    code = 0 if ended is None else 1
    if isinstance(ended, SystemExit):
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    elif ended is not None:
        sys.excepthook(type(ended), ended, ended.__traceback__)
    return code


def in_a_fork(work: Callable[[], str], *, own_group: bool = False) -> str:
    """What `work` returns, computed in a fork of this process.

    Args:
        own_group: the fork leads a process group, and what it has started and left running is killed after it. For work
            that ends soon: a signal to this process's group does not reach it.

    Raises:
        ForkDied: when the fork was killed or raised; its traceback is on standard error.
    """
    gc.freeze()  # a collection in the fork would touch, and so duplicate, every page
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if own_group:
                os.setpgid(0, 0)
            gc.disable()
            os.close(reading)
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                pipe.write(work())
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    said, status = _heard(reading, child)
    if own_group:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        raise ForkDied(f"killed by {signal.Signals(-code).name}")
    if code > 0:
        raise ForkDied(f"ended with exit code {code}")
    return said


def _heard(reading: int, child: int) -> tuple[str, int]:
    """What a fork wrote, and its wait status. What it leaves running may hold its end of the pipe open: a fork that has
    ended says no more."""
    parts: list[bytes] = []
    ended = 0
    try:
        while True:
            if select.select([reading], [], [], 0 if ended else 0.1)[0]:
                if not (part := os.read(reading, 1 << 16)):
                    break
                parts.append(part)
            elif ended:
                break
            else:
                ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        os.close(reading)
    if not ended:
        _, status = os.waitpid(child, 0)
    return b"".join(parts).decode(), status
