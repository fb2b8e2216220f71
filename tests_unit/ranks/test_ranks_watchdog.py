"""The watchdog step by step, with a clock that is moved by hand; and an exception thrown into a thread for real."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.ranks.agreement import Agreement, End, Limits
from contracts.ranks.watchdog import Aborted, Region, Watchdog


@dataclass
class Rank:
    """A watchdog over a store, its clock, and what it did."""

    watchdog: Watchdog
    now: list[float]
    did: list[str] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)

    def tick(self, seconds: float = 0.0) -> None:
        self.now[0] += seconds
        self.watchdog.tick()


def rank_of(shared: Any, number: int = 0, size: int = 2) -> Rank:
    now = [0.0]
    made: list[Rank] = []
    ended: list[End] = []

    def picture(region: Region) -> dict[str, object]:
        made[0].did.append("picture")
        return {"stack": "here"}

    watchdog = Watchdog(
        Agreement(shared, rank=number, size=size, clock=lambda: now[0]),
        Limits(test=5, grace=1, hard=4),
        abort=lambda: made[0].did.append("cut"),
        picture=picture,
        over=ended.append,
    )
    made.append(Rank(watchdog=watchdog, now=now, ended=ended))
    return made[0]


def store() -> Any:
    return pytest.importorskip("torch.distributed", reason="torch is not installed").HashStore()


def test_the_watchdog_does_nothing_to_a_rank_within_its_limit() -> None:
    rank = rank_of(store())
    with rank.watchdog.watched(1, "the call of test_x", 5):
        rank.tick(4.9)
    rank.tick(100)
    assert rank.did == []


def test_a_rank_over_its_time_limit_cancels_the_phase_on_all_ranks() -> None:
    shared = store()
    late, other = rank_of(shared, 0), rank_of(shared, 1)
    with late.watchdog.watched(1, "the call of test_x", 5), other.watchdog.watched(1, "the call of test_x", 5):
        late.tick(5.1)
        assert late.watchdog.agreement.called_off(1) == "rank 0 did not finish the call of test_x within 5 s"
        assert late.did == ["picture"], "nobody is cut before everybody's picture is taken"
        late.tick(0.1)
        assert late.did == ["picture"]
        other.tick(0.1)
        other.tick(0.1)
        late.tick(0.1)
        assert (late.did, other.did) == (["picture", "cut"], ["picture", "cut"])


def test_a_rank_that_does_not_dump_its_stacks_is_aborted_after_a_second() -> None:
    rank = rank_of(store())
    with rank.watchdog.watched(1, "the call", 5):
        rank.tick(5.1)
        rank.tick(0.9)
        assert rank.did == ["picture"]
        rank.tick(0.2)
        assert rank.did == ["picture", "cut"]


def test_cancelling_one_phase_does_not_cancel_the_next() -> None:
    shared = store()
    rank = rank_of(shared)
    rank.watchdog.agreement.call_off(1, "rank 1 did not pass")
    with rank.watchdog.watched(2, "the teardown", 5):
        rank.tick(0.1)
        rank.tick(2.0)
    assert rank.did == []


def test_a_rank_that_has_left_its_phase_is_not_aborted() -> None:
    """A late cut would hit the group of the next test."""
    shared = store()
    rank = rank_of(shared)
    with rank.watchdog.watched(1, "the call", 5) as region:
        rank.tick(5.1)
    rank.watchdog._bring_back(region, 7.0)
    assert rank.did == ["picture"]
    assert region.cut is None


def test_a_rank_that_never_returns_ends_the_run() -> None:
    rank = rank_of(store(), size=1)
    with rank.watchdog.watched(1, "the call of test_x", 5) as region:
        rank.tick(5.1)
        rank.tick(0.1)
        assert rank.did == ["picture", "cut"]
        try:
            rank.tick(1.1)  # throws into this thread, which swallows it
            time.sleep(0.1)
        except Aborted:
            rank.did.append("swallowed")
        rank.tick(2.0)
        assert not rank.ended
        rank.tick(1.0)
        rank.tick()
        assert rank.ended[0].reason.startswith("rank 0 did not come back from the call of test_x within 4 s")
        assert rank.ended[0].restart
        region.landed = True  # as the frame that swallowed it would know
    assert rank.did == ["picture", "cut", "swallowed"]
    assert region.thrown


def test_a_time_limit_within_a_test_cancels_only_its_own_region() -> None:
    rank = rank_of(store(), size=1)
    with rank.watchdog.watched(1, "the call", 5):
        with rank.watchdog.watched(2, "an example", 2):
            rank.tick(2.1)
            assert rank.watchdog.agreement.called_off(2) is not None
        rank.tick(0.1)
        assert rank.watchdog.agreement.called_off(1) is None
        rank.tick(3.0)
        assert rank.watchdog.agreement.called_off(1) is not None


def test_an_endless_python_loop_is_ended_by_an_exception() -> None:
    shared = store()
    limits = Limits(test=0.1, grace=0.1, hard=5)
    over: list[End] = []
    watchdog = Watchdog(Agreement(shared, rank=0, size=1), limits, abort=lambda: None, picture=lambda _: {},
                        over=over.append)  # fmt: skip
    watchdog.start()
    began = time.monotonic()
    try:
        with watchdog.watched(1, "the call", 0.1) as region:
            while True:
                pass
    except Aborted:
        assert region.landed
    finally:
        watchdog.stop()
    assert time.monotonic() - began < 4
    assert over == []


def test_the_watchdogs_exception_arrives_before_its_region_ends() -> None:
    """It may be thrown while the main thread is leaving; it is never to arrive in pytest itself."""
    limits = Limits(test=5, grace=1, hard=5)
    for _ in range(50):
        watchdog = Watchdog(Agreement(store(), rank=0, size=1), limits, abort=lambda: None, picture=lambda _: {},
                            over=lambda _: None)  # fmt: skip
        with watchdog.watched(1, "the call", 5) as region:
            thread = threading.Thread(target=watchdog._throw, args=(region,))
            try:
                thread.start()
            except Aborted:
                region.landed = True
        try:
            thread.join()
        except Aborted:
            pytest.fail("it arrived after the region was left")
        assert watchdog.region is None


def test_a_stop_from_another_rank_stops_this_one() -> None:
    shared = store()
    rank, other = rank_of(shared, 0), rank_of(shared, 1)
    other.watchdog.agreement.end(End(reason="rank 1 stopped the session", restart=False, rank=1))
    rank.tick()
    assert [end.reason for end in rank.ended] == ["rank 1 stopped the session"]
