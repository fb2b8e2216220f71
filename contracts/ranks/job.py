"""One rank's side of a session: agreement, watchdog, recovery and process group, and how they run a phase of a test.

Every rank makes the same calls in the same order, because every decision follows from merged outcomes.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from contracts.ranks import diagnostics, exit, groups, paired_counters, rank_environment, recovery
from contracts.ranks.agreement import Agreement, End, Limits, Waiting, decide, gathering
from contracts.ranks.guard_program import LEFT
from contracts.ranks.in_flight import InFlight, View, leftovers
from contracts.ranks.merge import Merged, Post, blamed, charged, merge, read, written
from contracts.ranks.watchdog import Aborted, Region, Watchdog

COPY_CHARACTERS = 1000
SKIPPED = 5  # times the grace period: what the peers of a rank that skipped get


@dataclass(kw_only=True)
class Counts:
    """What happened in this session, for its final summary."""

    rebuilt: int = 0
    aborted: int = 0
    left_by: dict[str, int] = field(default_factory=dict)  # test → number of groups that it made and did not destroy
    leaked: int = 0


class Job:
    """The connected parts of a session; `close` takes them apart."""

    def __init__(
        self,
        here: rank_environment.Place,
        folder: rank_environment.Folder,
        limits: Limits,
        *,
        backend: str,
        restart_only: bool,
        speak: Callable[[str, bool], None],
    ) -> None:
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, not in `__all__`

        self.here, self.folder, self.limits, self.restart_only = here, folder, limits, restart_only
        self.counts = Counts()
        self._all_passed = merge([Post(rank=rank) for rank in range(here.size)])
        self.poisoned = False
        self._pid, self._copies = os.getpid(), os.pipe()
        os.set_blocking(self._copies[0], False)
        self._raised = ""  # where an exception in the last phase came from
        self._connections = [groups.connection(here, first=True), groups.connection(here)]
        prefix = gathering(self._connections[0], rank=here.rank, size=here.size, limit=limits.collection)
        mine, watchdogs = (
            Agreement(PrefixStore(prefix, connection), rank=here.rank, size=here.size)
            for connection in self._connections
        )
        self.agreement = mine
        timeout_s = limits.test + limits.grace + limits.hard + 60
        self.in_flight = InFlight(here.rank)
        self.group = groups.SessionGroup(here, prefix, backend=backend, timeout_s=timeout_s)
        self.recovery = recovery.Recovery(here, folder, doing=self._doing, speak=speak)
        self.watchdog = Watchdog(
            watchdogs, limits, abort=self._abort, picture=self._picture, over=self.recovery.leave
        )  # fmt: skip
        self.signals = recovery.Signals(
            exit.orders(), lambda name: self.recovery.leave(End(reason=f"signal {name} from outside", restart=True))
        )

    def start(self) -> None:
        """Announce to the others which process this rank is, and start to watch."""
        self.agreement.store.set(f"peer/{self.here.rank}", json.dumps(recovery.myself(self.here).__dict__))
        self.watchdog.start()
        self.signals.start()

    def close(self) -> None:
        self.group.close()
        self.watchdog.stop()
        self.signals.stop()

    # -- exchanges ---------------------------------------------------------------------------------------------

    def exchange(
        self,
        mine: str,
        *,
        limit: float,
        step: int | None = None,
        name: str = "",
        bad: bool = False,
        grace: float | None = None,
    ) -> list[str]:
        """The message of every rank. If one is missing, call `step` off or end the run, as `decide` says."""
        self.end_copy("a hook of the session")
        began = bad_since = time.monotonic()
        step, called_off = self.agreement.next() if step is None else step, None
        limits = self.limits if grace is None else Limits(test=limit, grace=grace, hard=self.limits.hard)

        def look(missing: tuple[int, ...]) -> None:
            nonlocal called_off
            now = time.monotonic()
            self._meet(missing)
            ended = self.agreement.ended()
            if ended is not None:
                self.recovery.leave(ended)
            if called_off is None and self.agreement.called_off(step) is not None:
                called_off = now
                self.agreement.seen(step)  # nobody needs to wait for the record of a rank that only waits
            seen = Waiting(
                since=now - began, limit=limit, missing=missing, bad=now - bad_since if bad else None,
                called_off=None if called_off is None else now - called_off, lost=self.recovery.lost(missing),
                stopped=self.recovery.stopped(missing), me=self.here.rank,
                back=() if called_off is None else self.agreement.back(step, missing),
            )  # fmt: skip
            verdict = decide(seen, limits)
            if isinstance(verdict, End):
                self.recovery.leave(self.agreement.end(verdict))
            if verdict:
                self.agreement.call_off(step, verdict)

        return self.agreement.gather(mine, look, name)

    def _meet(self, ranks: tuple[int, ...]) -> None:
        """Look up the processes of the missing ranks."""
        for rank in ranks:
            if rank not in self.recovery.peers and self.agreement.store.check([f"peer/{rank}"]):
                self.recovery.peers[rank] = recovery.Peer(**json.loads(self.agreement.store.get(f"peer/{rank}")))

    def meet_all(self) -> None:
        self._meet(tuple(range(self.here.size)))

    def end(self, reason: str, *, restart: bool) -> None:
        """End the run for every rank."""
        self.recovery.leave(self.agreement.end(End(reason=reason, restart=restart, rank=self.here.rank)))

    # -- a phase of a test -------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, label: str, limit: float) -> Iterator[Region]:
        """A step under watch. Call `agree` afterwards, whatever happened."""
        step, self._raised = self.agreement.next(), ""
        try:
            with self.watchdog.watched(step, label, limit) as region:
                try:
                    try:
                        yield region
                    except BaseException as error:
                        self.end_copy(label, f": {type(error).__name__}: {error}")
                        raise
                    self.end_copy(label)
                except Aborted:  # the device's queue is gone with the group
                    raise
                except BaseException:
                    self.group.synchronize()
                    raise
                self.group.synchronize()
        except BaseException as error:
            self.agreement.come_back(step)
            self._raised = diagnostics.raised_at(error)  # now, because torchrun may end this rank before the report
            raise

    def end_copy(self, label: str, how: str = "") -> None:
        """End a process that the code under test has forked and that came back here. It is no rank: it shares the
        connections of one, and what it says would be taken for that rank's words."""
        if os.getpid() != self._pid:
            words = f"a process that rank {self.here.rank} forked in {label} came back into pytest{how}"
            os.write(self._copies[1], words[:COPY_CHARACTERS].replace("\n", " ").encode(errors="replace") + b"\n")
            os._exit(LEFT)

    def copies(self) -> list[str]:
        """What is known of forked processes that came back, since this was called last."""
        try:
            return os.read(self._copies[0], 1 << 16).decode(errors="replace").splitlines()
        except BlockingIOError:
            return []

    def why_aborted(self, region: Region, *, raised: bool) -> str:
        """Why this rank's part of a phase does not count, or "". An exception after the phase was called off comes from
        the first connection that was cut, even if this rank's own was not cut yet."""
        if region.reason:
            return region.reason
        return (self.agreement.called_off(region.step) or "") if raised else ""

    def agree(
        self, post: Post, region: Region, *, grace: float | None = None, name: str = "", took: int | None = None,
        even: bool = False,
    ) -> Merged:  # fmt: skip
        """Merge one rank's outcome of a phase with the others'.

        `took` is the number of ranks that took part, if not all did; a pass of the others says nothing. With `even`,
        nothing may be in flight after the phase.
        """
        if even:
            self.in_flight.let_threads_begin()
            view = self.in_flight.view()
            post = replace(post, in_flight=None if view == View() else asdict(view))
        bad = post.kind != "passed" or bool(post.aborted)
        if post.kind == "skipped" and grace is None:  # usually every rank skips, some later than others
            grace = SKIPPED * self.limits.grace
        said = self.exchange(written(post), name=name, limit=region.limit, step=region.step, bad=bad, grace=grace)
        if not any(said):
            return self._all_passed
        posts = [read(text, rank) for rank, text in enumerate(said)]
        idle = [post for post in posts[took:] if post.kind == "passed" and not post.aborted] if took else []
        merged = merge([post for post in posts if post not in idle])
        if merged.poisoned and (merged.aborted or self.group.backend != "nccl"):
            self.poisoned = True
        if even and not self.poisoned:
            merged = self._even(merged, [View(**(post.in_flight or {})) for post in posts])  # type: ignore[arg-type]  # as it was posted
        return self._with_evidence(merged, region) if merged.kind == "failed" else merged

    def _even(self, merged: Merged, views: list[View]) -> Merged:
        """The same, or a failure where the phase has left something in flight that does not land within the grace."""
        world = self.group.world  # beyond it a rank has no group
        found, until = leftovers(views[:world]), time.monotonic() + self.limits.grace
        while found:
            late = time.monotonic() > until
            mine = {"view": asdict(self.in_flight.view(whole=True)), "late": late}
            said = [json.loads(text) for text in self.exchange(json.dumps(mine), limit=self.limits.end, name="even")]
            found = leftovers([View(**each["view"]) for each in said[:world]])
            if any(each["late"] for each in said):
                break
            time.sleep(0.02)
        if not found:
            self.in_flight.even()
            return merged
        self.poisoned = True
        return charged(merged, found[0].rank, [each.words for each in found])

    def _with_evidence(self, merged: Merged, region: Region) -> Merged:
        mine = region.picture or {"stack": self._raised, **diagnostics.called(region.since_ns)}
        said = self.exchange(json.dumps(mine), limit=self.limits.end, name="evidence")
        views = {rank: json.loads(view) for rank, view in enumerate(said)}
        if any(outcome != "failed" for outcome in merged.outcomes.values()):  # where all fail, their words tell it
            text = f"{merged.text}\n----- where each rank was -----\n{diagnostics.shown(views)}"
            merged = replace(merged, text=text)
        odd = diagnostics.odd_one(views)
        return merged if odd is None else blamed(merged, odd)

    def from_rank_0(self, mine: str) -> str:
        """A value of rank 0, on every rank. All ranks call it in a phase of a test."""
        key = f"{self.agreement.step}/of-rank-0"
        store = self.agreement.store
        if self.here.speaks:
            store.set(key, mine)
        while not store.check([key]):
            time.sleep(0.002)  # not a blocking wait, which the watchdog could not end
        return store.get(key).decode()

    # -- the group ---------------------------------------------------------------------------------------------

    def open_group(self) -> None:
        self._agreed(self.group.open, "the process group")
        self.in_flight.even()

    def fit(self, world: int, drop: Callable[[], None]) -> None:
        """Give the default group to the first `world` ranks, unless they have it; `drop` what holds the old one."""
        if world == self.group.world:
            return

        def other() -> None:
            drop()
            self.group.resize(world)

        self._agreed(other, f"the process group of {world} ranks")
        self.in_flight.even()

    def rebuild(self, drop: Callable[[], None]) -> None:
        """Tear down what holds the poisoned group, and make a new one. If that fails or is not wanted, leave and let
        torchrun start the ranks again."""
        if self.restart_only:
            self.end("the process group was poisoned and --dist-recover is restart", restart=True)

        def anew() -> None:
            drop()
            self.group.close()
            self.group.synchronize()  # a device that does not return from the abort needs a restart
            self.group.open()
            paired_counters.make_even(self.group.generation)

        self._agreed(anew, "the next process group")
        self.in_flight.even()
        self.poisoned = False
        self.counts.rebuilt += 1

    def _agreed(self, work: Callable[[], object], name: str) -> None:
        limit, fault, region = self.limits.test, "", None
        try:
            with self.phase(name, limit) as region:
                work()
        except (Exception, Aborted) as error:
            fault = f"{type(error).__name__}: {error}"
        faults = self.exchange(fault, limit=limit, step=region.step if region else None, bad=bool(fault))
        if any(faults):
            rank = next(rank for rank, words in enumerate(faults) if words)
            self.end(f"rank {rank} could not make {name}: {faults[rank]}", restart=True)

    def _abort(self) -> None:
        self.group.abort()

    def _picture(self, region: Region) -> dict[str, object]:
        return {
            "stack": diagnostics.stack(self.watchdog.main),
            **diagnostics.called(region.since_ns),
            "label": region.label,
        }

    def _doing(self) -> dict[str, object]:
        region = self.watchdog.region
        if region is not None:
            return region.picture or self._picture(region)
        return {"stack": self._raised, **diagnostics.called(), "label": "between two phases"}
