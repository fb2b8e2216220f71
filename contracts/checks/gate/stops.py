"""A gate that is stopped from outside: nothing of it goes on, and nothing that it leaves looks like a verdict."""

from __future__ import annotations

from contracts.contract import contract
from contracts.spec.records import EXIT_CODES, Stop
from contracts.spec.stack import Court

BY: dict[str, tuple[Stop]] = {"sigterm": ("SIGTERM",), "sigkill": ("SIGKILL",), "full-disk": ("full disk",)}


@contract("GATE-17", asks="stopped", cases=BY, source="law: GATE-17", slow=True)
def a_check_that_is_stopped_leaves_no_process_no_record_and_no_green(court: Court, by: Stop) -> None:
    """A check that is stopped from outside, or whose disk is full, ends all that it has started, leaves no record that
    can be read, and its exit code is that of no verdict on a stack.

    The time limit of a CI killed the command alone: the judge lived on, and twelve seconds later it had written a
    complete record, which said conformant.
    """
    found = court.stopped(by)
    assert found.word is None, f"after {by} its folder holds a record that says {found.word}"
    assert not found.left, f"after {by} {len(found.left)} of its processes live on: {'; '.join(found.left)}"
    of_a_verdict = [word for word, code in EXIT_CODES.items() if code == found.exit_code and word != "broken"]
    assert not of_a_verdict, f"after {by} it ends with {found.exit_code}, which is {of_a_verdict[0]}"
