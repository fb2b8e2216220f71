"""What a test leaves in flight: collectives that not every member of a group has entered, messages that nobody took.

The collectives of the next test would meet them, and the next test would be the one that fails. So every rank says how
often it has called each of its groups since all ranks were last even, and the counts are compared. A backend's own
count holds messages as well, of which no two ranks have equally many: they are counted apart. So is what each process
counts for itself and torch pairs ranks by (`paired_counters`).
"""

import functools
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.ranks import paired_counters

THREADS_S = 0.1  # what a thread that a test leaves behind gets to enter its collective before the ranks compare
ANY = "any"


@dataclass(frozen=True, kw_only=True)
class View:
    """One rank's calls since all were even; ranks are numbered in the job.

    `collectives`: group → how many. `sent`: channel → how many; `taken`: channel → source → how many, where a channel
    names the rank that takes, the tag and the group. `live`: the groups that it still has; None where it does not say.
    `paired`: what else it has made that ranks make together → how many.
    """

    collectives: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    live: Sequence[str] | None = None
    paired: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """What was left, and the rank that stands out."""

    rank: int
    words: str


def leftovers(views: Sequence[View]) -> list[Leftover]:
    """Where the calls of the ranks do not match. `views` by rank, of those in the default group."""
    groups = dict.fromkeys(group for view in views for group in view.collectives)
    channels = dict.fromkeys(channel for view in views for channel in [*view.sent, *view.taken])
    found = [Leftover(rank=rank, words=words) for rank, words in paired_counters.uneven([v.paired for v in views])]
    found += [each for group in groups for each in _collectives(group, views)]
    return found + [each for channel in channels for each in _messages(channel, views)]


def _collectives(group: str, views: Sequence[View]) -> Iterator[Leftover]:
    members = [int(rank) for rank in group.partition("[")[2].rstrip("]").split(",")]
    counts = {
        rank: views[rank].collectives.get(group, 0)
        for rank in members
        if group in (views[rank].live or [group])  # a rank that has destroyed the group has none in it
    }
    tally = Counter(counts.values())
    usual = min(tally, key=lambda count: (-tally[count], count), default=0)  # of two ranks, what the idler one did
    others = ", ".join(str(rank) for rank, count in counts.items() if count == usual)
    for rank, count in counts.items():
        many = f"{abs(count - usual)} collective{'s' if abs(count - usual) > 1 else ''} of group {group}"
        if count > usual:
            yield Leftover(rank=rank, words=f"rank {rank} left {many} in flight, which rank {others} never entered")
        elif count < usual:
            yield Leftover(rank=rank, words=f"rank {rank} never entered {many}, which rank {others} left in flight")


def _messages(channel: str, views: Sequence[View]) -> Iterator[Leftover]:
    to = int(channel.partition(" ")[0])
    taken = dict(views[to].taken.get(channel, {}))
    of_any = taken.pop(ANY, 0)
    over = {rank: view.sent.get(channel, 0) - taken.get(str(rank), 0) for rank, view in enumerate(views)}
    for source, count in over.items():
        if count < 0:
            yield Leftover(rank=to, words=f"rank {to} waits for {-count} message(s) that rank {source} never sent "
                                          f"to {channel}")  # fmt: skip
    unmatched = sum(count for count in over.values() if count > 0) - of_any
    source = next((rank for rank, count in over.items() if count > 0), to)
    if unmatched > 0:
        yield Leftover(rank=source, words=f"rank {source} sent {unmatched} message(s) that were never received, "
                                          f"to rank {channel}")  # fmt: skip
    elif unmatched < 0:
        yield Leftover(rank=to, words=f"rank {to} waits for {-unmatched} message(s) that no rank sent to {channel}")


class InFlight:
    """Counts this rank's calls. `even` says that all ranks' calls match, so that counting begins anew."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._before: dict[str, int] = {}
        self._paired_before: dict[str, int] = {}
        self._apart: Counter[str] = Counter()  # group → of the backend's count, what is no collective
        self._sent: Counter[str] = Counter()
        self._taken: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._threads = set(threading.enumerate())
        _heard_by(self._call)

    def even(self) -> None:
        live = set(_groups().values())
        self._apart = Counter({name: calls for name, calls in self._apart.items() if name in live})  # names come again
        self._before = self._counts()
        self._paired_before = paired_counters.counts()
        self._sent.clear()
        self._taken.clear()

    def view(self, *, whole: bool = False) -> View:
        """The message to the others; with `whole`, also the groups that exist."""
        counts = self._counts()
        new = {group: count - self._before.get(group, 0) for group, count in counts.items()}
        return View(
            collectives={group: count for group, count in new.items() if count},
            sent=dict(self._sent),
            taken={channel: dict(sources) for channel, sources in self._taken.items()},
            live=list(counts) if whole else None,
            paired={
                what: count - self._paired_before.get(what, 0)
                for what, count in paired_counters.counts().items()
                if count != self._paired_before.get(what, 0)
            },
        )

    def let_threads_begin(self) -> None:
        """A thread that this test has started and not joined may be on its way into a collective."""
        there = set(threading.enumerate())
        new = [each for each in there - self._threads if not each.name.startswith("ranks-")]
        self._threads = there
        until = time.monotonic() + THREADS_S
        while new and time.monotonic() < until:
            time.sleep(0.01)
            new = [each for each in new if each.is_alive()]

    def _counts(self) -> dict[str, int]:
        """Group → how many collectives this rank has called in it."""
        from torch.distributed import get_process_group_ranks

        found = {}
        for group, name in _groups().items():
            calls = _calls(group)
            if calls is not None:
                members = ",".join(map(str, get_process_group_ranks(group)))
                found[f"{name} [{members}]"] = calls - self._apart[name]
        return found

    def _call(self, group: Any, what: str, peer: int | None, tag: int, calls: int) -> None:
        """Take note of a message, or of what counts otherwise on every rank."""
        name = group.group_name
        self._apart[name] += calls
        if what == "monitored_barrier":
            return
        other = ANY if peer is None else str(_members(name)[peer])
        where = f"(tag {tag}, group {name})"
        if what == "send":
            self._sent[f"{other} {where}"] += 1
        else:
            self._taken[f"{self._rank} {where}"][other] += 1


def _members(name: str) -> list[int]:
    """The ranks of a group. By its name, because a group in Python may pass its calls to another in C++."""
    from torch.distributed import get_process_group_ranks

    (group,) = (group for group, known in _groups().items() if known == name)
    return get_process_group_ranks(group)


def _groups() -> dict[Any, str]:
    """Every live group of this process, and its name. Private in torch: nothing public lists them. Seen to 2.13."""
    from torch.distributed.distributed_c10d import _world

    return dict(_world.pg_names)


def _calls(group: Any) -> int | None:
    """How often this rank has called a group, messages among it where the backend counts them; None where it counts
    nothing. Private in torch; seen in 1.9 to 2.13."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return None


_heard: list[Callable[[Any, str, int | None, int, int], None]] = []


def _heard_by(hear: Callable[[Any, str, int | None, int, int], None]) -> None:
    """Have every message of this process told to `hear`. They all go through these methods: a message has no
    collective's place in C++ that would send one by itself."""
    from torch.distributed import ProcessGroup

    if not _heard:
        for name in ("send", "recv", "recv_anysource", "monitored_barrier"):
            setattr(ProcessGroup, name, _told(getattr(ProcessGroup, name), name))
    _heard[:] = [hear]


def _told(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    has_peer = name in ("send", "recv")

    @functools.wraps(method)
    def call(group: Any, *arguments: Any, **named: Any) -> Any:
        before = _calls(group) or 0
        try:
            return method(group, *arguments, **named)
        finally:
            rest = [*arguments[1:], *named.values()] if name != "monitored_barrier" else []
            peer, tag = (rest[0] if has_peer and rest else None), (rest[-1] if rest else 0)
            _heard[0](group, name, peer, tag, (_calls(group) or 0) - before)

    return _left_alone_by_the_compiler(call)


def _left_alone_by_the_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that torch.compile calls and does not trace, as it did with the method that this one stands before.
    A rank that never compiles never imports the compiler for it: seconds, within the limit of its first message.
    Private in torch, because `torch.compiler.disable` imports it at once. Seen in 2.1 to 2.13."""
    from torch._compile import _disable_dynamo

    untraced: Callable[..., Any] = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return (untraced if "torch._dynamo" in sys.modules else function)(*arguments, **named)

    return call
