"""How ranks leave together when a rank cannot be recovered: they write last words, kill silent ranks, and exit.

`--max-restarts` decides whether torchrun then starts the ranks again.
"""

import contextlib
import faulthandler
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, NoReturn

from contracts.ranks import diagnostics, exit, rank_environment
from contracts.ranks.agreement import End
from contracts.ranks.guard_program import LEFT

ANSWER_S = 1.0  # the time that peers get to write their last words
TAKE_STACKS = signal.SIGRTMIN + 7  # no convention uses it; faulthandler answers even while the GIL is held


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A rank's process. `begun` distinguishes it from a later process with the same id."""

    rank: int
    host: str
    pid: int
    begun: int


def myself(here: rank_environment.Place) -> Peer:
    return Peer(rank=here.rank, host=here.host, pid=os.getpid(), begun=rank_environment.started(os.getpid()))


class Recovery:
    """What a rank does at an end that it did not choose. `speak` is called on the one rank that reports it."""

    def __init__(
        self,
        here: rank_environment.Place,
        folder: rank_environment.Folder,
        *,
        doing: Callable[[], dict[str, object]],
        speak: Callable[[str, bool], None],
    ) -> None:
        self.here, self.folder = here, folder
        self.peers: dict[int, Peer] = {}
        self._doing, self._speak = doing, speak
        self._leaving = threading.Lock()
        self._stopped_since: dict[int, float] = {}
        self.stacks: IO[str] = folder.stacks(here.rank, here.attempt).open("w", encoding="utf-8")

    def watch_for_crashes(self) -> None:
        """Let the interpreter write the stacks of all threads at a crash or on request."""
        faulthandler.enable(file=self.stacks)
        faulthandler.register(TAKE_STACKS, file=self.stacks, all_threads=True, chain=False)

    def lost(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Those of `ranks` whose process on this host is gone."""
        return tuple(rank for rank in ranks if self._state(rank) == "gone")

    def stopped(self, ranks: Iterable[int]) -> dict[int, float]:
        """Those of `ranks` that a signal has stopped on this host, with the seconds since that was seen."""
        now = time.monotonic()
        held = [rank for rank in ranks if self._state(rank) == "stopped"]
        self._stopped_since = {rank: self._stopped_since.get(rank, now) for rank in held}
        return {rank: now - since for rank, since in self._stopped_since.items()}

    def _state(self, rank: int) -> str:
        peer = self.peers.get(rank)
        return rank_environment.state(peer.pid, peer.begun) if peer and peer.host == self.here.host else "alive"

    def leave(self, end: End) -> NoReturn:
        """Report what is known and exit this process. Any thread may call it; the first call counts."""
        if not self._leaving.acquire(blocking=False):
            while True:  # the thread that came first ends the process
                time.sleep(1)
        with contextlib.suppress(Exception):  # whatever this meets, a full disk above all, the process is to end
            self._tell_the_end(end)
        with contextlib.suppress(OSError):
            if not end.restart:
                self.folder.complete.write_text("1")
        exit.leave_quietly(LEFT, final=not end.restart)

    def _tell_the_end(self, end: End) -> None:
        mine = ""
        try:
            self._write_last_words(end)
        except OSError as error:
            mine = f"{end.reason}\n(last words cannot be written in {self.folder.path}: {error.strerror})"
        self._wait_for_answers()
        answered = self._answered()
        if self.here.rank == min(answered, default=self.here.rank - self.here.local_rank):
            if not mine:  # where nothing can be written, silence says nothing; the guards end who hangs
                self._end_the_silent(answered)
            told = mine or account(self.folder, self.here.attempt, self.here.size).told()
            self._speak(told, end.restart and self.here.restarts_left > 0)

    def _write_last_words(self, end: End) -> None:
        gone = self.lost(self.peers)
        reason = f"rank {', '.join(map(str, gone))} died without an outcome" if gone else end.reason
        words = {"reason": reason, "rank": gone[0] if gone else end.rank, "when": time.time(), **self._doing()}
        path = self.folder.last_words(self.here.rank, self.here.attempt)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(words), encoding="utf-8")
        part.replace(path)

    def _answered(self) -> set[int]:
        ranks = range(self.here.size)
        return {rank for rank in ranks if self.folder.last_words(rank, self.here.attempt).exists()}

    def _wait_for_answers(self) -> None:
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and len(self._answered()) + len(self.lost(self.peers)) < self.here.size:
            time.sleep(0.02)

    def _end_the_silent(self, answered: set[int]) -> None:
        """Take the stacks of ranks that hold the GIL or are stopped, and kill them; torchrun would wait 30 s."""
        silent = [peer for rank, peer in self.peers.items() if rank not in answered and self._state(rank) != "gone"]
        silent = [peer for peer in silent if peer.host == self.here.host]
        for peer in silent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.pid, TAKE_STACKS)
                os.kill(peer.pid, signal.SIGCONT)
        time.sleep(0.2 if silent else 0)
        for peer in silent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Account:
    """Why an attempt ended, and what each rank of this host was doing."""

    reason: str
    rank: int
    doing: str

    def told(self) -> str:
        return f"{self.reason}\n{self.doing}".rstrip()


def account(folder: rank_environment.Folder, attempt: int, size: int) -> Account:
    """Why an attempt ended, from the last words of its ranks. A death outranks the signals that follow from it."""
    views: dict[int, dict[str, object]] = {}
    crashes = []
    for rank in range(size):
        said = diagnostics.tail(folder.last_words(rank, attempt), 1_000_000)
        if said:
            views[rank] = json.loads(said)
        stack = diagnostics.crash(folder.stacks(rank, attempt))
        if stack:
            crashes.append(f"rank {rank}, as the interpreter left it:\n{stack}")
    ranked = sorted(views.values(), key=lambda view: (str(view["reason"]).startswith("signal "), str(view["when"])))
    first = ranked[0] if ranked else {"reason": "every rank died without a word", "rank": -1}
    doing = "\n".join([diagnostics.shown(views) if views else "", *crashes])
    reason, rank = str(first["reason"]), int(str(first["rank"]))
    if odd := diagnostics.odd_one(views):
        rank, reason = odd.rank, f"{odd.words}; {reason}"
    return Account(reason=reason, rank=rank, doing=doing)


class Signals:
    """Hears SIGTERM, SIGINT and SIGHUP from outside even while the main thread is inside a collective.

    The guard receives them and passes them on by a pipe. A handler in this process would wait until the main thread
    returns to Python, and it would replace a handler that a test installs.
    """

    def __init__(self, orders: int, heard: Callable[[str], None]) -> None:
        self._orders, self._heard = orders, heard
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="ranks-signals", daemon=True)

    def start(self) -> None:
        if self._orders >= 0:
            self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            os.write(self._write, b"\0")
            self._thread.join()

    def _listen(self) -> None:
        ready, _, _ = select.select([self._orders, self._read], [], [])
        if self._read not in ready:
            told = os.read(self._orders, 1)
            self._heard(signal.Signals(told[0]).name if told else "SIGKILL, to the guard,")
