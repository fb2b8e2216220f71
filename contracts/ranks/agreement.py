"""How ranks reach one view: every rank writes its own, waits for the others until a deadline, and reads all.

The exchange uses torchrun's key-value store and never the group under test, which may be broken. Every rank counts
exchanges and phases in the same way: nothing that happens only on one rank changes a count.
"""

import datetime
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

SLICE_S = 0.25  # of one blocking wait; between two, a rank checks its peers. Polling costs three times as much per test
FIRST_S = 0.004  # of the first such wait, then twice as long each: who guesses wrongly is woken by nobody
KEPT = 100  # characters
MEMBERS = 31  # ranks that share a counter: each adds a bit when it comes, and one 31 higher when it says something
_EVERYBODY = (1 << MEMBERS) - 1
_OVER = ("silent", "said")  # the key that the last rank sets, where nobody says anything and where somebody does


class Store(Protocol):
    """The part of torch.distributed.Store that is used here."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def wait(self, keys: list[str], timeout: datetime.timedelta, /) -> None: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds. `test` limits a phase of a test, `grace` the time its peers get once a rank has failed, `hard` the time
    an aborted rank gets to return to Python."""

    test: float = 60.0
    grace: float = 1.0
    hard: float = 10.0
    collection: float = 300.0
    end: float = 60.0


@dataclass(frozen=True, kw_only=True)
class End:
    """Why a run is over. `restart` asks torchrun to start the ranks again; `silent` are the ranks without an answer."""

    reason: str
    restart: bool = True
    rank: int = -1
    silent: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What a rank that waits for others can see.

    `since` counts from the beginning of the phase, `bad` from the first outcome other than a pass that this rank knows
    of, `called_off` from when it saw that the phase was called off (None: not yet). `lost` and `stopped` are the
    missing ranks on this host whose processes are gone or stopped, `stopped` with the seconds since. `back` are the
    ranks that have left the phase but not yet reported: writing up a failure can take seconds.
    """

    since: float
    limit: float
    missing: tuple[int, ...]
    bad: float | None = None
    called_off: float | None = None
    lost: tuple[int, ...] = ()
    stopped: Mapping[int, float] = field(default_factory=dict)
    back: tuple[int, ...] = ()
    me: int = -1


def decide(seen: Waiting, limits: Limits) -> End | str | None:
    """What a waiting rank does: end the run, call the phase off for the reason given, or wait on."""
    names = ", ".join(map(str, seen.missing))
    if seen.lost:
        gone = ", ".join(map(str, seen.lost))
        return End(reason=f"rank {gone} died without an outcome", rank=seen.lost[0], silent=seen.lost)
    if seen.stopped and max(seen.stopped.values()) > 2 * limits.grace:
        still = tuple(sorted(seen.stopped))
        return End(reason=f"rank {', '.join(map(str, still))} was stopped by a signal", rank=still[0], silent=still)
    if seen.called_off is not None:
        bound = limits.end if set(seen.missing) <= set(seen.back) else limits.hard + limits.grace
        if seen.called_off <= bound:
            return None
        words = f"rank {names} did not come back within {limits.hard:g} s of the abort"
        return End(reason=words, rank=seen.missing[0], silent=seen.missing)
    if seen.bad is not None and seen.bad > limits.grace:
        return f"rank {seen.me} did not pass; rank {names} still busy {limits.grace:g} s later"
    if seen.since > seen.limit + limits.grace:
        return f"rank {names} did not finish within {seen.limit:g} s"
    return None


def gathering(store: Store, *, rank: int, size: int, limit: float) -> str:
    """A name for this start of all ranks. The store outlives the ranks, and has no key under this name yet.

    torchrun's own count of restarts cannot be used: it differs from node to node. So rank 0 draws a name, every rank
    writes a nonce under it, and the name is valid once rank 0 has read all nonces: no earlier rank 0 has read them.

    Raises: TimeoutError if a rank does not join within `limit` seconds.
    """
    nonce, until = uuid.uuid4().hex, time.monotonic() + limit
    if rank == 0:
        store.set("ranks/name", nonce)
        store.set(f"{nonce}/0", nonce)
    while time.monotonic() < until:
        name = store.get("ranks/name").decode() if store.check(["ranks/name"]) else ""
        if rank == 0 and store.check([f"{name}/{other}" for other in range(size)]):
            read = store.multi_get([f"{name}/{other}" for other in range(size)])
            store.set(f"{name}/all", b" ".join(read).decode())
            return name
        if name and rank:
            store.set(f"{name}/{rank}", nonce)
            if store.check([f"{name}/all"]) and nonce in store.get(f"{name}/all").decode():
                return name
        time.sleep(0.01)
    raise TimeoutError(f"rank {rank} waited {limit:g} s for the other ranks to begin")


class Agreement:
    """One rank's side of the exchanges. Each thread needs an agreement of its own, over its own connection: a TCPStore
    client that waits blocks every other use of it."""

    def __init__(self, store: Store, *, rank: int, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.rank, self.size, self.clock = store, rank, size, clock
        self.step = 0  # of a phase; phases nest
        self._exchanges = 0
        self._spent: tuple[str, ...] = ()
        self._said: dict[str, bool] = {}  # name → whether anybody said something in its last exchange

    def next(self) -> int:
        """Begin the next phase."""
        self.step += 1
        return self.step

    def order(self, step: int) -> int:
        """The position of this rank, from 1, among those that did not pass in a step."""
        return self.store.add(f"{step}/order", 1)

    def gather(self, mine: str, look: Callable[[tuple[int, ...]], None], name: str = "") -> list[str]:
        """The message of every rank in the next exchange, by rank. While waiting, calls `look` with the missing.

        If nobody says anything, which is most of the time, a rank asks the store twice.

        Raises: whatever `look` raises in order to give up.
        """
        self._exchanges += 1
        stem = f"exchange/{self._exchanges}/{name}"
        if mine:
            self.store.set(f"{stem}/{self.rank}", mine)
        any_said, seconds = self._arrive(stem, bool(mine)), FIRST_S
        awaited = bool(mine) or self._said.get(name, False)  # who is silent can only guess what the others are
        while any_said is None:
            if self._comes(f"{stem}/{_OVER[awaited]}", seconds):
                any_said = awaited
            elif not (missing := self._without(there := self._there(stem))):  # a wrong guess, or the last one died
                any_said = any(each >> MEMBERS for each in there)
            elif seconds == SLICE_S:
                look(missing)
            seconds = min(2 * seconds, SLICE_S)
        self._said[name] = any_said
        said = [""] * self.size
        if any_said:
            speaking = self._speaking(self._there(stem))
            read = self.store.multi_get([f"{stem}/{rank}" for rank in speaking])
            for rank, value in zip(speaking, read, strict=True):
                said[rank] = value.decode()
        # Every rank is in this exchange, so every rank has read the one before, and its message can go. A short one
        # stays: a deletion costs as much as a read, and saves torchrun some 100 bytes.
        for key in self._spent:
            self.store.delete_key(key)
        self._spent = (f"{stem}/{self.rank}",) if len(mine) > KEPT else ()
        return said

    def _arrive(self, stem: str, says: bool) -> bool | None:
        """Count this rank in. The last one, which wakes the others, learns whether anybody says something."""
        number, bit = divmod(self.rank, MEMBERS)
        there = self.store.add(f"{stem}/there/{number}", 1 << bit | says << bit + MEMBERS)
        if there & _EVERYBODY != _full(number, self.size):
            return None
        counters, any_said = -(-self.size // MEMBERS), there >> MEMBERS > 0
        if counters > 1:
            full = self.store.add(f"{stem}/full", 1 | any_said << MEMBERS)
            if full & _EVERYBODY != counters:
                return None
            any_said = full >> MEMBERS > 0
        self.store.set(f"{stem}/{_OVER[any_said]}", "")
        return any_said

    def _there(self, stem: str) -> list[int]:
        """The counters of an exchange: who is there and, above, who says something."""
        return [self.store.add(f"{stem}/there/{number}", 0) for number in range(-(-self.size // MEMBERS))]

    def _without(self, there: Sequence[int]) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.size) if not there[rank // MEMBERS] >> rank % MEMBERS & 1)

    def _speaking(self, there: Sequence[int]) -> list[int]:
        return [rank for rank in range(self.size) if there[rank // MEMBERS] >> rank % MEMBERS + MEMBERS & 1]

    def _comes(self, key: str, seconds: float) -> bool:
        try:
            self.store.wait([key], datetime.timedelta(seconds=seconds))
        except (
            RuntimeError
        ) as error:  # DistStoreError is a RuntimeError; a lost connection must not look like a late rank
            if "timeout" not in str(error).lower() and "timed out" not in str(error).lower():
                raise
            return False
        return True

    def call_off(self, step: int, reason: str) -> str:
        """Call every rank to leave a step. Returns the reason that was given first, which holds."""
        return self.store.compare_set(f"{step}/abort", "", reason).decode()

    def called_off(self, step: int) -> str | None:
        """Why a step is called off, or None."""
        key = f"{step}/abort"
        return self.store.get(key).decode() if self.store.check([key]) else None

    def come_back(self, step: int) -> None:
        """Say that this rank has left a step, though not yet with which outcome."""
        self.store.set(f"{step}/back/{self.rank}", "")

    def back(self, step: int, ranks: Sequence[int]) -> tuple[int, ...]:
        """Those of `ranks` that have left a step."""
        return tuple(rank for rank in ranks if self.store.check([f"{step}/back/{rank}"]))

    def end(self, end: End) -> End:
        """Announce to every rank that the run is over. Returns the end that was declared first, which holds."""
        said = self.store.compare_set("end", "", json.dumps(end.__dict__)).decode()
        return _end(said)

    def ended(self) -> End | None:
        return _end(self.store.get("end").decode()) if self.store.check(["end"]) else None

    def seen(self, step: int) -> int:
        """Count this rank among those that have recorded what they were doing in a step; returns how many have."""
        return self.store.add(f"{step}/seen", 1)

    def all_seen(self, step: int) -> bool:
        return self.store.add(f"{step}/seen", 0) >= self.size


def _full(number: int, size: int) -> int:
    """The bits of a counter when all of its ranks are there."""
    return (1 << min(MEMBERS, size - number * MEMBERS)) - 1


def _end(text: str) -> End:
    plain = json.loads(text)
    return End(**{**plain, "silent": tuple(plain["silent"])})


def differences(views: Sequence[Mapping[str, object]]) -> list[str]:
    """The differences of the ranks' views, one line per field: the values and the ranks that hold them."""
    lines = []
    for name in dict.fromkeys(key for view in views for key in view):
        held: dict[str, list[int]] = {}
        for rank, view in enumerate(views):
            held.setdefault(str(view.get(name, "(nothing)")), []).append(rank)
        if len(held) > 1:
            said = "; ".join(f"rank {', '.join(map(str, ranks))}: {value}" for value, ranks in held.items())
            lines.append(f"{name}: {said}")
    return lines
