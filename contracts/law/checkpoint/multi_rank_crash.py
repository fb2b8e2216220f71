"""The checkpoints that survive when one of several ranks dies in a save, when all of them do, and when one disk is
full; and saves in the background that later steps and the next save overtake.

A checkpoint of several ranks is complete when the slowest rank has written, not when the first has.
"""

from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.saved_states import (
    FAMILIES,
    SHAPES,
    folder,
    load_failure,
    snapshot_difference,
    state,
    target,
)
from contracts.spec import Checkpointing, Shape, WriteFault, Written

SPREAD = {
    **{name: SHAPES[name] for name in (saved_states.EXPERTS, saved_states.BIAS, saved_states.STEPS_TAKEN)},
    "weights/head.weight": Shape(dtype="float32", shape=(5, 3)),
    "buffers/one-row": Shape(dtype="int64", shape=(1, 2)),
}
"""12 experts, 5 rows that do not divide evenly over the ranks, a single row that only one rank holds, and a scalar."""
MANY = 80
"""More boundaries than a rank passes in any known stack; rank 0 of the reference passes eleven, of OLMo-core 50."""
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
    died = False
    for boundary in (*boundaries, MANY):
        with folder() as at:
            saved_states.write(stack, at, state(2, SPREAD))
            ends = stack.write_on_ranks(str(at), new, ranks, dict.fromkeys(dying, WriteFault(dies_after=boundary)))
            died = died or any(ends[rank].ending == "died" for rank in dying)
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
    assert died, "no rank died at any boundary"
    assert done, f"the ranks still end {_endings(ends)} at boundary {MANY}"


FULL = {"the-last-of-two": (2, 1, 150), "the-first-of-two": (2, 0, 150), "the-last-of-three": (3, 2, 0)}


@contract("CKPT-03f", asks=ASKS, cases=FULL, source=FAMILIES)
def one_full_disk_takes_nothing_with_it(stack: Checkpointing, ranks: int, full: int, room: int) -> None:
    """If one rank runs out of disk space in a save, every rank refuses it. The previous checkpoint stays whole and is
    still the latest, no new files are left behind, and once there is space again the step can be saved.

    A rank that continues by itself waits for the others in the next step's collective, or believes that the step was
    saved.
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


LATE: dict[str, tuple[tuple[int, ...], int, int]] = {  # steps that are saved, ranks, the rank that writes late
    "the-last-is-late": ((9, 10), 2, 1),
    "the-first-is-late": ((98, 99, 100), 2, 0),
    "the-middle-of-three": ((9, 10), 3, 1),
}


@contract(
    "CKPT-03g", asks=("write_in_background_on_ranks", "latest_checkpoint", "load_checkpoint"), cases=LATE,
    source=FAMILIES,
)  # fmt: skip
def saves_of_ranks_in_the_background_are_of_their_calls(
    stack: Checkpointing, steps: tuple[int, ...], ranks: int, late: int
) -> None:
    """An asynchronous save by several ranks holds the state that each rank had when it called the save, even if one
    rank writes long after the others have continued. Saves complete in the order of their calls, and a load that
    follows at once returns the last save, whole, on every rank.

    A rank that keeps references instead of copies writes shards of a later step beside the other ranks' shards of this
    one. The shapes agree, so nothing complains.
    """
    states = tuple(state(step, SPREAD) for step in steps)
    with folder() as at:
        every = stack.write_in_background_on_ranks(str(at), states, ranks, late)
        order = max((told.published for told in every), key=len)
        assert order == steps, f"complete in the order {order}, called as {steps}"
        for rank, told in enumerate(every):
            words = f"was refused: {told.loaded.refused}" if told.loaded.refused else ""
            words = words or snapshot_difference(told.loaded.state, states[-1])
            assert not words, f"a load right after the save of step {steps[-1]}, on rank {rank}: {words}"
        for each in states:
            loaded = stack.load_checkpoint(str(at), each.step, target(each))
            words = f"was refused: {loaded.refused}" if loaded.refused else snapshot_difference(loaded.state, each)
            assert not words, f"step {each.step} was saved in the background, rank {late} late, and {words}"
        latest = stack.latest_checkpoint(str(at))
        assert latest == steps[-1], f"the latest is {latest}, expected {steps[-1]}"
