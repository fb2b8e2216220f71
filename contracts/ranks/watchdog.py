"""The watchdog of one rank: a thread that brings the main thread back from wherever a test is stuck.

A phase of a test runs in a region. Once the phase is called off, by a peer or because this rank's time is up, the
watchdog records what the rank is doing and waits until every rank has done so, because the first cut frees the others.
Then it cuts the process group, raises `Aborted` in the main thread, and as a last resort ends the run.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from contracts.ranks.agreement import Agreement, End, Limits

PERIOD_S = 0.05
PICTURES_S = 1.0  # how long a rank waits for the records of the others, at most
SOFT_S = 1.0  # how long a cut connection may take to free the rank before an exception is raised


class Aborted(BaseException):
    """Raised in a rank whose phase is called off. Not an Exception: a test's `except Exception` must not catch it."""


@dataclass(kw_only=True)
class Region:
    """One phase under watch. `since_ns` is Unix time; other times are the clock's seconds."""

    step: int
    limit: float
    label: str
    began: float
    since_ns: int
    nested_in: Region | None = None
    pictured: float | None = None
    cut: float | None = None
    thrown: bool = False
    landed: bool = False
    reason: str = ""
    picture: dict[str, object] | None = None


class Watchdog:
    """Watches the main thread. `agreement` is the watchdog's own, over a separate connection.

    `abort` cuts the process group, `picture` says what this rank is doing, `over` is called once the run has ended.
    """

    def __init__(
        self,
        agreement: Agreement,
        limits: Limits,
        *,
        abort: Callable[[], None],
        picture: Callable[[Region], dict[str, object]],
        over: Callable[[End], None],
        main: int | None = None,
    ) -> None:
        self.agreement, self.limits = agreement, limits
        self._abort, self._picture, self._over = abort, picture, over
        self.main = threading.get_ident() if main is None else main
        self.region: Region | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ranks-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. If it were inside the store when the interpreter shuts down, it would crash the process."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @contextmanager
    def watched(self, step: int, label: str, limit: float) -> Iterator[Region]:
        """A region. Only inside it may the group be cut and `Aborted` be raised. Regions nest."""
        region = Region(step=step, limit=limit, label=label, began=self.agreement.clock(), since_ns=time.time_ns(),
                        nested_in=self.region)  # fmt: skip
        with self._lock:
            self.region = region
        try:
            yield region
        except Aborted:
            region.landed = True
            raise
        finally:
            self._leave(region)

    def _leave(self, region: Region) -> None:
        """Close the region under the watchdog's lock, and let an exception that was thrown already land here.

        It cannot be taken back: clearing it leaves CPython 3.11's eval breaker set for good.
        """
        while True:
            try:
                with self._lock:
                    self.region = region.nested_in
                deadline = time.monotonic() + SOFT_S
                while region.thrown and not region.landed and time.monotonic() < deadline:
                    time.sleep(0.001)
                return
            except Aborted:
                region.landed = True

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.tick()
            except RuntimeError as error:  # the store is gone, and so is torchrun
                self._over(End(reason=f"the job's store does not answer: {error}", restart=False))
                return

    def tick(self) -> None:
        """Check once."""
        ended = self.agreement.ended()
        if ended is not None:
            self._over(ended)
            return
        region = self.region
        if region is None:
            return
        now = self.agreement.clock()
        reason = region.reason or self.agreement.called_off(region.step)
        if not reason and now - region.began > region.limit:
            words = f"rank {self.agreement.rank} did not finish {region.label} within {region.limit:g} s"
            reason = self.agreement.call_off(region.step, words)
        if reason:
            region.reason = reason
            self._bring_back(region, now)

    def _bring_back(self, region: Region, now: float) -> None:
        if region.pictured is None:
            region.picture, region.pictured = self._picture(region), now
            self.agreement.seen(region.step)
        elif region.cut is None:
            if now - region.pictured > PICTURES_S or self.agreement.all_seen(region.step):
                self._cut(region, now)
        elif not region.thrown and now - region.cut > SOFT_S:
            self._throw(region)
        elif now - region.cut > self.limits.hard:
            words = f"rank {self.agreement.rank} did not come back from {region.label} within {self.limits.hard:g} s"
            rank = self.agreement.rank
            self.agreement.end(End(reason=f"{words} of the abort ({region.reason})", rank=rank))

    def _cut(self, region: Region, now: float) -> None:
        """Cut the group, unless the main thread has left the region: a late cut would hit the next test's group."""
        with self._lock:
            if self.region is not region:
                return
            region.cut = now
            worker = threading.Thread(target=self._abort, name="ranks-abort", daemon=True)
            worker.start()
            worker.join(self.limits.hard)  # an NCCL abort may never return
        if worker.is_alive():
            rank = self.agreement.rank
            self.agreement.end(
                End(reason=f"rank {rank} could not abort its process group ({region.reason})", rank=rank)
            )

    def _throw(self, region: Region) -> None:
        with self._lock:
            if self.region is region:
                region.thrown = True
                throw(self.main)


def throw(thread: int) -> None:
    """Raise `Aborted` in a thread at its next Python instruction, by CPython's C interface, stable since 3.7."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Aborted))
