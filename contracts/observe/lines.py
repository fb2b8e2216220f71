"""Lines of a trace in their order, from the first that a device has to fill."""

import threading
from collections.abc import Callable, Sequence

ASIDE = True
"""Whether lines are written by a thread while a backward pass runs, which needs no Python."""
PAUSE_S = 0.0005
"""How long that thread leaves Python to the script, which else would wait for it before the pass begins: Python runs
one thread at a time, and lets another one in after 5 ms, or where the first reads or writes a file."""


class Lines:
    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.filled = 0  # how many of them can be written
        self._writes = 0  # the thread that writes some at this moment
        self._aside: threading.Thread | None = None
        self._wanted = threading.Event()  # somebody waits for that thread
        self._error: Exception | None = None  # of that thread

    def add(self, write: Callable[[], None], *, waits: bool = False) -> None:
        """Write a line in its turn; at once if no line waits, or if one that is being written asks for it."""
        if self._writes == threading.get_ident() or not (self.waiting or waits or self._writes):
            write()
        else:
            self.waiting.append(write)

    def write(self, *, aside: bool = False) -> None:
        """Write the lines that can be, `aside` by a thread of its own."""
        self.written()
        ready, self.waiting, self.filled = self.waiting[: self.filled], self.waiting[self.filled :], 0
        if ready and aside and ASIDE:
            self._writes = -1
            self._wanted.clear()
            self._aside = threading.Thread(target=self._write_aside, args=(ready,), name="rankproof")
            self._aside.start()
        else:
            self._write(ready)

    def written(self) -> None:
        """Wait for the lines that are written aside.

        Raises:
            Exception: what has stopped that.
        """
        self.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def join(self) -> None:
        if self._aside is not None:  # which stays, since two may wait for it: a thread that forks, and the script's
            self._wanted.set()
            self._aside.join()

    def _write(self, ready: Sequence[Callable[[], None]]) -> None:
        self._writes = threading.get_ident()
        try:
            for write in ready:
                write()
        finally:
            self._writes = 0

    def _write_aside(self, ready: Sequence[Callable[[], None]]) -> None:
        self._wanted.wait(PAUSE_S)
        try:
            self._write(ready)
        except Exception as error:  # which ends the observing, and not the script
            self._error = error
