"""What survives when one of several ranks dies in a save, when all of them do, and when one disk is full.

A checkpoint of several ranks is complete when the slowest rank has written, not when the first has.
"""

from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.folders import folder
from contracts.law._support.saved_states import FAMILIES, SHAPES, load_failure, state
from contracts.spec import Checkpointing, Shape, WriteFault, Written

SPREAD = {
    **{name: SHAPES[name] for name in (saved_states.EXPERTS, saved_states.BIAS, saved_states.STEPS_TAKEN)},
    "weights/head.weight": Shape(dtype="float32", shape=(5, 3)),
    "buffers/one-row": Shape(dtype="int64", shape=(1, 2)),
}
"""12 experts, 5 rows that do not divide evenly over the ranks, a single row that only one rank holds, and a scalar."""
MANY = 40
"""More boundaries than a rank passes in any known stack; rank 0 of the reference passes eleven."""
ASKS = ("write_on_ranks", "write_checkpoint", "latest_checkpoint", "load_checkpoint")
DYING: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {  # ranks, those that die, the boundaries to die at
    "the-first-of-two": (2, (0,), (1, 2, 4, 6, 8, 9, 10, 11)),
    "the-last-of-two": (2, (1,), (1, 2, 3, 4)),
    "all-of-three": (3, (0, 1, 2), (2, 4)),
}


@contract("CKPT-03d", asks=ASKS, cases=DYING, source=FAMILIES, slow=True)
def a_rank_may_die_at_any_boundary(
    stack: Checkpointing, ranks: int, dying: tuple[int, ...], boundaries: tuple[int, ...]
) -> None:
    """If one rank or all ranks die at any point of a save, the newest complete checkpoint, the previous one or the new
    one, is found and loads whole. No rank waits for a dead one, and the ranks can save the step again.

    The rank that marks a checkpoint complete knows only about its own shards. The slowest rank writes its shards later.
    """
    new = state(4, SPREAD)
    for boundary in (*boundaries, MANY):
        with folder() as at:
            saved_states.write(stack, at, state(2, SPREAD))
            ends = stack.write_on_ranks(str(at), new, ranks, dict.fromkeys(dying, WriteFault(dies_after=boundary)))
            said = f"the ranks that save step 4 ended {_endings(ends)}, and"
            assert "hung" not in {each.ending for each in ends}, f"{said} one waits for the dead"
            done = all(each.ending == "done" for each in ends)
            latest = stack.latest_checkpoint(str(at))
            allowed = (4,) if done else (2, 4)
            assert latest in allowed, f"{said} the latest is {latest}, expected one of {allowed}"
            words = load_failure(stack, at, state(latest or 0, SPREAD), None)
            assert not words, f"{said} step {latest} is the latest, but {words}"
            if latest != 4:
                ends = stack.write_on_ranks(str(at), new, ranks, {})
                words = (
                    _endings(ends) if {each.ending for each in ends} != {"done"} else load_failure(stack, at, new, 4)
                )
                assert not words, f"{said} step 4 was saved again: {words}"
    assert done, f"the ranks still end {_endings(ends)} at boundary {MANY}"


FULL = {"the-last-of-two": (2, 1, 150), "the-first-of-two": (2, 0, 150), "the-last-of-three": (3, 2, 0)}


@contract("CKPT-03f", asks=ASKS, cases=FULL, source=FAMILIES)
def one_full_disk_takes_nothing_with_it(stack: Checkpointing, ranks: int, full: int, room: int) -> None:
    """If one rank runs out of disk space in a save, every rank refuses it. The previous checkpoint stays whole and is
    still the latest, no new files are left behind, and once there is space again the step can be saved.

    A rank that continues alone waits for the others in the next step's collective, or believes that the step was saved.
    """
    old, new = state(2, SPREAD), state(4, SPREAD)
    with folder() as at:
        saved_states.write(stack, at, old)
        there = saved_states.files(at)
        ends = stack.write_on_ranks(str(at), new, ranks, {full: WriteFault(room=room)})
        said = f"rank {full} found no room, and"
        assert {each.ending for each in ends} == {"refused"}, f"{said} the ranks ended {_endings(ends)}"
        latest = stack.latest_checkpoint(str(at))
        assert latest == 2, f"{said} the latest is {latest}, expected 2"
        left = sorted(path.name for path in saved_states.files(at) - there)
        assert not left, f"{said} these files are left: {', '.join(left)}"
        words = load_failure(stack, at, old, None)
        assert not words, f"{said} step 2 is not whole: {words}"
        ends = stack.write_on_ranks(str(at), new, ranks, {})
        words = _endings(ends) if {each.ending for each in ends} != {"done"} else load_failure(stack, at, new, 4)
        assert not words, f"with room again step 4 was saved: {words}"


def _endings(ends: tuple[Written, ...]) -> str:
    """How a save ended on each rank, with shortened reasons."""
    return ", ".join(
        f"{each.ending} at boundary {each.boundaries}" + (f" ({each.words[:80]})" if each.words else "")
        for each in ends
    )
