"""Calls a function in a fork of this process: it takes milliseconds after a slow import, and leaves no state behind.

Standard library only. The process must not have started threads; a process that only imported torch has none.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable


class ForkDied(Exception):
    """The forked process ended without finishing its work."""


def in_a_fork(work: Callable[[], str]) -> str:
    """What `work` returns, computed in a fork of this process.

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
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        raise ForkDied(f"killed by {signal.Signals(-code).name}")
    if code > 0:
        raise ForkDied(f"ended with exit code {code}")
    return said
