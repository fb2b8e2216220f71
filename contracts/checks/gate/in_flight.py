"""The gate under torchrun: what a test leaves in flight is that test's own, and no other's."""

from __future__ import annotations

from contracts.checks.gate.multi_rank import HEAD, LIMIT_S, Expected, is_told
from contracts.contract import contract
from contracts.spec.stack import Court

_COLLECTIVES = """
import threading
kept = []

def test_leaves_a_collective():
    if RANK == 1:
        kept.append(dist.all_reduce(torch.tensor([100]), async_op=True))

def test_after_the_collective():
    assert total(2) == 22

def test_leaves_a_thread():
    if RANK == 1:
        threading.Thread(target=total, args=[7], daemon=True).start()

def test_after_the_thread():
    assert total(3) == 33

def test_nobody_waits_for_what_all_have_entered():
    kept.append(dist.all_reduce(torch.tensor([1]), async_op=True))

def test_after_that():
    assert total(4) == 44
"""

_MESSAGES = """
kept = []

def test_sends_what_nobody_takes():
    if RANK == 0:
        kept.append(dist.isend(torch.tensor([666]), 1))

def test_takes_its_own():
    x = torch.tensor([0])
    if RANK == 0:
        dist.send(torch.tensor([5]), 1)
    else:
        dist.recv(x, 0)
        assert x.item() == 5

def test_waits_for_what_nobody_sends():
    if RANK == 1:
        kept.append(dist.irecv(torch.tensor([0]), 0, tag=7))

def test_after_the_messages():
    assert total(3) == 33
"""

# file, what the report must say
LEFT: dict[str, tuple[str, Expected]] = {
    "collectives": (
        HEAD + _COLLECTIVES,
        {"test_leaves_a_collective": ("failed", "rank 1 left 1 collective of group 0 [0,1] in flight"),
         "test_after_the_collective": ("passed",),
         "test_leaves_a_thread": ("failed", "rank 1 left 1 collective of group 0 [0,1] in flight"),
         "test_after_the_thread": ("passed",), "test_nobody_waits_for_what_all_have_entered": ("passed",),
         "test_after_that": ("passed",)},
    ),
    "messages": (
        HEAD + _MESSAGES,
        {"test_sends_what_nobody_takes": ("failed", "rank 0 sent 1 message(s) that were never received"),
         "test_takes_its_own": ("passed",),
         "test_waits_for_what_nobody_sends": ("failed", "rank 1 waits for 1 message(s) that rank 0 never sent"),
         "test_after_the_messages": ("passed",)},
    ),
}  # fmt: skip


@contract("GATE-13", asks="run_ranks", cases=LEFT, source="law: GATE-13", tier="dist", slow=True)
def what_a_test_leaves_in_flight_is_charged_to_it(court: Court, tests: str, expected: Expected) -> None:
    """A test that leaves anything in flight on a rank fails and names the rank: a collective that the others do not
    enter, also in a thread, or a message without its counterpart. The next test meets clean groups.

    Otherwise the collectives of the next test meet what was left: the faulty test passes, and a right one fails.
    """
    found = court.run_ranks(tests, 2, LIMIT_S)
    is_told(found, expected)
    assert found.exit_code != 0, "2 ranks end with 0 after a test that left something in flight"
