"""How ranks come to one view: ranks are threads here, over one HashStore, with a clock that is moved by hand."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from contracts.ranks.agreement import MEMBERS, Agreement, End, Limits, Waiting, decide, differences, gathering

LIMITS = Limits(test=60, grace=1, hard=10)


def store() -> Any:
    return pytest.importorskip("torch.distributed", reason="torch is not installed").HashStore()


def together(size: int, work: Callable[[Agreement], Any]) -> list[Any]:
    shared = store()
    with ThreadPoolExecutor(size) as pool:
        ranks = [Agreement(shared, rank=rank, size=size) for rank in range(size)]
        return [done.result(30) for done in [pool.submit(work, rank) for rank in ranks]]


def no_look(missing: tuple[int, ...]) -> None:
    pass


def test_every_rank_reads_the_messages_of_all_ranks() -> None:
    def work(rank: Agreement) -> list[str]:
        rank.next()
        return rank.gather(f"of {rank.rank}", no_look)

    assert together(4, work) == [["of 0", "of 1", "of 2", "of 3"]] * 4


def test_a_hundred_consecutive_exchanges_do_not_mix() -> None:
    def work(rank: Agreement) -> list[list[str]]:
        said = []
        for number in range(100):
            rank.next()
            said.append(rank.gather(f"{number}.{rank.rank}", no_look))
            said.append(rank.gather(f"{number}.{rank.rank}", no_look, name="again"))
        return said

    expected = [[f"{number}.{rank}" for rank in range(3)] for number in range(100) for _ in range(2)]
    assert together(3, work) == [expected] * 3


def test_a_message_of_one_rank_reaches_all_ranks() -> None:
    def work(rank: Agreement) -> list[list[str]]:
        return [rank.gather("a word" if (number, rank.rank) == (3, 2) else "", no_look) for number in range(6)]

    expected = [[""] * 3, [""] * 3, [""] * 3, ["", "", "a word"], [""] * 3, [""] * 3]
    assert together(3, work) == [expected] * 3


def test_a_long_message_is_deleted_after_every_rank_has_read_it() -> None:
    shared = store()

    def work(rank: Agreement) -> None:
        for _ in range(50):
            rank.next()
            rank.gather("x" * 1000, no_look)

    ranks = [Agreement(shared, rank=rank, size=2) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, rank) for rank in ranks]:
            done.result(30)
    assert shared.num_keys() - 50 * 2 <= 2  # of each exchange who was there and that it is over, and the last messages


def test_messages_and_missing_ranks_are_seen_with_more_ranks_than_one_counter_holds() -> None:
    size, speakers = 2 * MEMBERS + 3, ({-1}, {0, MEMBERS}, {64})

    def work(rank: Agreement) -> list[list[str]]:
        return [rank.gather(f"{rank.rank}" if rank.rank in speak else "", no_look) for speak in speakers]

    expected = [[f"{rank}" if rank in speak else "" for rank in range(size)] for speak in speakers]
    assert together(size, work) == [expected] * size
    seen: list[tuple[int, ...]] = []

    class GivesUp(Exception):
        pass

    def look(missing: tuple[int, ...]) -> None:
        seen.append(missing)
        raise GivesUp

    shared = store()
    for rank in (size - 1, MEMBERS):
        with pytest.raises(GivesUp):
            Agreement(shared, rank=rank, size=size).gather("", look)
    assert seen == [tuple(range(size - 1)), tuple(each for each in range(size - 1) if each != MEMBERS)]


def test_a_waiting_rank_sees_which_ranks_are_missing_and_may_stop_waiting() -> None:
    seen: list[tuple[int, ...]] = []

    class GivesUp(Exception):
        pass

    def look(missing: tuple[int, ...]) -> None:
        seen.append(missing)
        if len(seen) > 1:
            raise GivesUp

    rank = Agreement(store(), rank=1, size=4)
    rank.next()
    with pytest.raises(GivesUp):
        rank.gather("mine", look)
    assert seen == [(0, 2, 3), (0, 2, 3)]


def test_the_first_reason_to_cancel_a_step_is_kept_for_that_step_only() -> None:
    def work(rank: Agreement) -> str:
        return rank.call_off(7, f"because of {rank.rank}")

    assert len(set(together(5, work))) == 1
    rank = Agreement(store(), rank=0, size=2)
    assert rank.called_off(7) is None
    rank.call_off(7, "late")
    assert (rank.called_off(7), rank.called_off(8)) == ("late", None)


def test_the_first_end_of_a_session_is_kept() -> None:
    rank = Agreement(store(), rank=0, size=2)
    assert rank.ended() is None
    end = End(reason="rank 1 died", restart=False, rank=1, silent=(1, 3))
    assert rank.end(end) == end
    assert rank.end(End(reason="another")) == end
    assert rank.ended() == end


def test_the_rank_that_failed_first_is_decided_by_the_store_and_not_by_clocks() -> None:
    def work(rank: Agreement) -> int:
        return rank.order(5)

    assert sorted(together(6, work)) == [1, 2, 3, 4, 5, 6]


def test_a_lost_store_is_not_reported_as_a_late_rank() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None: ...

        def add(self, key: str, amount: int) -> int:
            return amount

        def wait(self, *_: object) -> None:
            raise RuntimeError("Connection reset by peer")

    rank = Agreement(Gone(), rank=0, size=2)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Connection reset by peer"):
        rank.gather("mine", no_look)


DECISIONS = {  # what a waiting rank sees → what it does: a word of it, or None to wait on
    "just-begun": ({"since": 0.3}, None),
    "within-the-limit": ({"since": 59.0}, None),
    "within-limit-and-grace": ({"since": 60.9}, None),
    "past-limit-and-grace": ({"since": 61.1}, "rank 1, 2 did not finish within 60 s"),
    "bad-just-now": ({"since": 5.0, "bad": 0.9}, None),
    "bad-and-grace-over": ({"since": 5.0, "bad": 1.1}, "rank 0 did not pass; rank 1, 2 still busy 1 s later"),
    "called-off-just-now": ({"since": 70.0, "bad": 9.0, "called_off": 0.1}, None),
    "called-off-in-time": ({"since": 70.0, "bad": 9.0, "called_off": 10.9}, None),
    "called-off-too-long": ({"since": 80.0, "called_off": 11.1}, End(
        reason="rank 1, 2 did not come back within 10 s of the abort", rank=1, silent=(1, 2))),
    "back-and-writing-its-report": ({"since": 80.0, "called_off": 30.0, "back": (1, 2)}, None),
    "one-of-two-is-back": ({"since": 80.0, "called_off": 11.1, "back": (1,)}, End(
        reason="rank 1, 2 did not come back within 10 s of the abort", rank=1, silent=(1, 2))),
    "back-and-never-heard-of": ({"since": 200.0, "called_off": 61.0, "back": (1, 2)}, End(
        reason="rank 1, 2 did not come back within 10 s of the abort", rank=1, silent=(1, 2))),
    "one-is-dead": ({"since": 0.1, "lost": (2,)}, End(reason="rank 2 died without an outcome", rank=2, silent=(2,))),
    "dead-while-called-off": ({"since": 0.1, "called_off": 0.1, "lost": (1, 2)}, End(
        reason="rank 1, 2 died without an outcome", rank=1, silent=(1, 2))),
    "stopped-for-a-moment": ({"since": 0.1, "stopped": {1: 1.9}}, None),
    "stopped": ({"since": 0.1, "stopped": {1: 2.1}}, End(
        reason="rank 1 was stopped by a signal", rank=1, silent=(1,))),
}  # fmt: skip


@pytest.mark.parametrize("case", DECISIONS)
def test_a_waiting_rank_takes_the_mildest_step_that_bounds_its_wait(case: str) -> None:
    seen, expected = DECISIONS[case]
    assert decide(Waiting(limit=60, missing=(1, 2), me=0, **seen), LIMITS) == expected  # type: ignore[arg-type]


def test_every_wait_is_bounded() -> None:
    """Whatever a waiting rank sees, by limit + grace + hard + grace it has ended the run or is no longer waiting."""
    called_off_at = None
    for tenth in range(10_000):
        now = tenth / 10
        off = None if called_off_at is None else now - called_off_at
        verdict = decide(Waiting(since=now, limit=60, missing=(1,), called_off=off, me=0), LIMITS)
        if isinstance(verdict, End):
            assert now == pytest.approx(60 + 1 + 10 + 1, abs=0.5)
            return
        if verdict and called_off_at is None:
            called_off_at = now
    raise AssertionError("it waits still")


def test_ranks_that_start_together_agree_on_a_name_and_each_start_has_its_own() -> None:
    shared = store()

    def begin(size: int) -> list[str]:
        with ThreadPoolExecutor(size) as pool:
            begun = [pool.submit(gathering, shared, rank=rank, size=size, limit=20) for rank in reversed(range(size))]
            return [done.result(30) for done in begun]

    names = [begin(4) for _ in range(20)]
    assert all(len(set(each)) == 1 for each in names)
    assert len({each[0] for each in names}) == 20


def test_a_rank_that_starts_before_rank_zero_does_not_join_the_previous_start() -> None:
    shared = store()
    with ThreadPoolExecutor(2) as pool:
        first = [pool.submit(gathering, shared, rank=rank, size=2, limit=20) for rank in range(2)]
        former = {done.result(30) for done in first}
        early = pool.submit(gathering, shared, rank=1, size=2, limit=20)
        time.sleep(0.2)
        assert not early.done()
        assert {gathering(shared, rank=0, size=2, limit=20)} == {early.result(30)}
        assert {early.result()} != former


def test_waiting_for_a_rank_that_never_starts_ends() -> None:
    with pytest.raises(TimeoutError, match=r"rank 0 waited 0\.1 s for the other ranks to begin"):
        gathering(store(), rank=0, size=2, limit=0.1)


def test_disagreeing_ranks_are_reported_by_field_value_and_rank() -> None:
    views = [{"tests": 3, "torch": "2.13"}, {"tests": 4, "torch": "2.13"}, {"tests": 3, "torch": "2.13", "NCCL_X": "1"}]
    assert differences(views) == [
        "tests: rank 0, 2: 3; rank 1: 4",
        "NCCL_X: rank 0, 1: (nothing); rank 2: 1",
    ]
    assert differences([{"tests": 3}, {"tests": 3}]) == []


def test_a_second_thread_can_cancel_a_wait() -> None:
    shared = store()
    waiter, watchdog = (Agreement(shared, rank=0, size=2) for _ in range(2))
    heard: list[str] = []

    class Heard(Exception):
        pass

    def look(missing: tuple[int, ...]) -> None:
        reason = waiter.called_off(waiter.step)
        if reason:
            heard.append(reason)
            raise Heard

    waiter.next()
    threading.Timer(0.05, lambda: watchdog.call_off(1, "too late")).start()
    with pytest.raises(Heard):
        waiter.gather("mine", look)
    assert heard == ["too late"]
