"""A time limit for the code under test: an alarm in the main thread, and the supervisor's own where there is one."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from contracts.court import heartbeat

AGAIN_S = 1.0  # the alarm is repeated, in case that the first one is lost in a cleanup which never ends


class Overdue(BaseException):
    """The time is over. Not an Exception, so that a stack's `except Exception: retry` cannot swallow it."""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Interrupt Python code that takes too long; `what` is asked, in words for the supervisor.

    There is no alarm outside the main thread: only that receives signals. If code escapes the alarm, or never
    returns to Python, the supervisor ends the process (`contracts.harness.supervisor`).

    Raises:
        Overdue: in the code under the deadline.
    """
    if threading.current_thread() is not threading.main_thread():
        with heartbeat.asking(what, seconds):
            yield
        return

    def late(signum: int, frame: FrameType | None) -> None:
        raise Overdue

    before, started = signal.signal(signal.SIGALRM, late), time.monotonic()
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        with heartbeat.asking(what, seconds):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's alarm, such as that of pytest-timeout
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - started), 1e-3), again)
