"""A call in a fork gives back what it said, and what it leaves running holds nobody up."""

import os
import select
import signal
import time

import pytest

from contracts.stacks.forked_call import ForkDied, in_a_fork


def test_an_answer_larger_than_a_pipes_buffer_arrives_complete() -> None:
    assert in_a_fork(lambda: "ä" * 200_000) == "ä" * 200_000


@pytest.mark.parametrize(("work", "words"), [(lambda: os._exit(3), "exit code 3"), (os.abort, "SIGABRT")])
def test_a_fork_that_dies_is_reported_as_dead(work: object, words: str) -> None:
    with pytest.raises(ForkDied, match=words):
        in_a_fork(work)  # type: ignore[arg-type]


@pytest.mark.parametrize("own_group", [False, True])
def test_a_process_left_by_a_fork_does_not_block_the_caller(own_group: bool) -> None:
    alive, held = os.pipe()  # the end that is held open by the process that was left

    def leave_one_running() -> str:
        if process := os.fork():
            return str(process)
        time.sleep(60)
        os._exit(0)

    left = int(in_a_fork(leave_one_running, own_group=own_group))
    os.close(held)
    ended, _, _ = select.select([alive], [], [], 20 if own_group else 0)
    assert bool(ended) == own_group
    if not own_group:
        os.kill(left, signal.SIGKILL)
    os.close(alive)
