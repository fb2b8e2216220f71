"""What a test leaves in flight makes that test red on every rank, and the next one meets clean groups."""

from pathlib import Path

import pytest

from contracts.ranks.in_flight import View, leftovers
from tests_unit.ranks.running import CONFTEST, Run, needs_torch, torchrun

FILE = """
import threading
kept = []

def left(value, **how):
    kept.append(dist.all_reduce(torch.full((1,), value), async_op=True, **how))

def test_begins():
    assert summed(1) == 2

def test_collective_of_rank_1():
    if RANK == 1:
        left(100.0)

def test_after_the_collective():
    assert summed(1) == 2

def test_message_of_rank_0():
    if RANK == 0:
        kept.append(dist.isend(torch.full((1,), 666.0), 1))

def test_after_the_message():
    x = torch.zeros(1)
    if RANK == 0:
        dist.send(torch.full((1,), 5.0), 1)
    else:
        dist.recv(x, 0)
        assert x.item() == 5.0

def test_waits_for_a_message():
    if RANK == 1:
        kept.append(dist.irecv(torch.zeros(1), 0, tag=7))

def test_thread_of_rank_1():
    if RANK == 1:
        threading.Thread(target=summed, args=[1], daemon=True).start()

def test_after_the_thread():
    assert summed(1) == 2

@pytest.fixture
def group():
    yield dist.new_group([0, 1])

@pytest.fixture
def leaves_in_teardown(group):
    yield group
    if RANK == 0:
        left(1.0, group=group)

def test_teardown(leaves_in_teardown):
    assert summed(1, leaves_in_teardown) == 2

def test_after_the_teardown():
    assert summed(1) == 2

def test_collective_of_a_subgroup():
    group = dist.new_group([0, 1])
    if RANK == 1:
        left(1.0, group=group)

def test_nobody_waits_for_what_all_have_entered():
    left(1.0)

def test_late_thread_that_lands():
    if RANK == 1:
        time.sleep(0.2)
        assert summed(1) == 2
    else:
        threading.Thread(target=summed, args=[1], daemon=True).start()

def test_calls_that_no_two_ranks_make_alike():
    x = torch.zeros(1)
    for n in range(3):
        if RANK == 0:
            dist.send(x, 1, tag=n)
        else:
            dist.recv(x, None if n == 2 else 0, tag=n)
    dist.monitored_barrier()
    both = [dist.P2POp(dist.isend, x, 1 - RANK), dist.P2POp(dist.irecv, x.clone(), 1 - RANK)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    group = dist.new_group([0, 1])
    assert summed(1, group) == 2
    dist.destroy_process_group(group)

def test_ends():
    assert summed(RANK) == 1
"""

LEFT = {  # test → the rank, and what is said of it
    "test_collective_of_rank_1": "rank 1 left 1 collective of group 0 [0,1] in flight, which rank 0 never entered",
    "test_message_of_rank_0": "rank 0 sent 1 message(s) that were never received, to rank 1 (tag 0, group 0)",
    "test_waits_for_a_message": "rank 1 waits for 1 message(s) that rank 0 never sent to 1 (tag 7, group 0)",
    "test_thread_of_rank_1": "rank 1 left 1 collective of group 0 [0,1] in flight",
    "test_teardown": "rank 0 left 1 collective of group",
    "test_collective_of_a_subgroup": "rank 1 left 1 collective of group",
}


def is_charged_to_who_left_it(run: Run) -> None:
    assert run.outcomes, run.output[-4000:]
    outcomes = {name: run.outcome(name) for name in run.outcomes}
    for name, words in LEFT.items():
        assert outcomes.pop(name) in ("failed", "error"), f"{name} is not red: {run.output[-3000:]}"
        assert words in run.words(name), f"{name} does not say {words!r}: {run.words(name)}"
    assert {name: run.words(name) for name, said in outcomes.items() if said != "passed"} == {}
    assert len(outcomes) == 9


@pytest.mark.torchrun
@needs_torch()[1]
def test_a_collective_left_in_flight_fails_the_test_that_left_it(tmp_path: Path) -> None:
    is_charged_to_who_left_it(torchrun(tmp_path, {"test_left.py": FILE}, "--dist-grace=0.5", "-v", ranks=2))


BROKEN: dict[str, tuple[str, str]] = {  # a plugin of which one part is replaced on each rank, and what is red then
    "leftovers are not compared": (
        "from contracts.ranks import job\njob.leftovers = lambda views: []\n",
        "test_collective_of_rank_1 is not red",
    ),
    "messages are not counted": (
        "from contracts.ranks import in_flight\nin_flight._messages = lambda channel, views: iter(())\n",
        "test_message_of_rank_0 is not red",
    ),
    "the other rank is blamed": (
        """
from dataclasses import replace
from contracts.ranks import in_flight, job
def swapped(views):
    found = in_flight.leftovers(views)
    return [replace(each, rank=0, words=each.words.replace("rank 1 waits", "rank 0 waits")) for each in found]
job.leftovers = swapped
""",
        "test_waits_for_a_message does not say 'rank 1",
    ),
}


@pytest.mark.torchrun
@needs_torch()[1]
@pytest.mark.parametrize("part", BROKEN)
def test_the_test_of_collectives_in_flight_fails_without_the_plugins_check(part: str, tmp_path: Path) -> None:
    instead, words = BROKEN[part]
    files = {"test_left.py": FILE, "conftest.py": CONFTEST + instead}
    run = torchrun(tmp_path, files, "--dist-grace=0.5", "-v", ranks=2)
    with pytest.raises(AssertionError, match=words):
        is_charged_to_who_left_it(run)


SAME_NAME = """
def group():
    group = dist.new_group()
    assert group.group_name == "1"
    return group

def test_begins():
    assert summed(1) == 3

def test_rank_0_takes_more_messages_than_others():
    x, of = torch.zeros(1), group()
    for peer in (1, 2):
        dist.recv(x, peer, of) if RANK == 0 else RANK == peer and dist.send(x, 0, of)
    dist.barrier()
    dist.destroy_process_group(of)

def test_leaves_a_collective():
    kept = RANK == 1 and dist.all_reduce(torch.ones(1), async_op=True)

def test_group_of_the_same_name():
    assert summed(1, group()) == 3
"""


@pytest.mark.torchrun
@needs_torch()[1]
def test_a_new_group_does_not_get_messages_of_an_older_one_with_its_name(tmp_path: Path) -> None:
    run = torchrun(tmp_path, {"test_left.py": SAME_NAME}, "--dist-grace=0.5", "-v", ranks=3)
    assert [run.outcome(name) for name in run.outcomes] == ["passed", "passed", "failed", "passed"], run.output[-3000:]


def view(**calls: object) -> View:
    return View(**calls)  # type: ignore[arg-type]  # as JSON gives it


ALL, PAIR = "0 [0,1,2]", "7 [1,2]"
CASES: dict[str, tuple[list[View], list[tuple[int, str]]]] = {
    "even": ([view(collectives={ALL: 2})] * 3, []),
    "one more": (
        [view(), view(collectives={ALL: 1}), view()],
        [(1, "left 1 collective of group 0 [0,1,2] in flight, which rank 0, 2")],
    ),
    "one fewer": (
        [view(collectives={ALL: 3}), view(collectives={ALL: 1}), view(collectives={ALL: 3})],
        [(1, "never entered 2 collectives of group 0 [0,1,2], which rank 0, 2 left in flight")],
    ),
    "not a member": ([view(), view(collectives={PAIR: 1}), view(collectives={PAIR: 1})], []),
    "destroyed on one rank": ([view(live=[ALL]), view(collectives={PAIR: 1}, live=[ALL, PAIR]), view(live=[ALL])], []),
    "taken of anybody": ([view(sent={"2 x": 1}), view(sent={"2 x": 1}), view(taken={"2 x": {"any": 1, "0": 1}})], []),
    "one too many sent": (
        [view(sent={"2 x": 2}), view(), view(taken={"2 x": {"0": 1}})],
        [(0, "sent 1 message(s) that were never")],
    ),
    "waits for anybody": (
        [view(), view(), view(taken={"2 x": {"any": 1}})],
        [(2, "waits for 1 message(s) that no rank sent")],
    ),
    "waits for another": (
        [view(sent={"2 x": 1}), view(), view(taken={"2 x": {"1": 1}})],
        [(2, "waits for 1 message(s) that rank 1 never sent"), (0, "sent 1 message(s)")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_mismatched_calls_are_reported_with_the_rank_that_differs(case: str) -> None:
    views, expected = CASES[case]
    found = leftovers(views)
    assert [each.rank for each in found] == [rank for rank, _ in expected]
    for each, (_, words) in zip(found, expected, strict=True):
        assert words in each.words
