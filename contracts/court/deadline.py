"""A time limit for the code under test: an alarm in the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 1.0  # the alarm is repeated, in case that the first one is lost in a cleanup which never ends


class Overdue(BaseException):
    """The time is over. Not an Exception, so that a stack's `except Exception: retry` cannot swallow it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Interrupt Python code that takes too long.

    There is no deadline outside the main thread, which alone receives signals, nor for code that never returns to
    Python.

    Raises:
        Overdue: in the code under the deadline.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(signum: int, frame: FrameType | None) -> None:
        raise Overdue

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
