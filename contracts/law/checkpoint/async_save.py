"""Asynchronous saves of several ranks, overtaken by later training steps and by the next save."""

from contracts.contract import contract
from contracts.law._support.folders import folder
from contracts.law._support.saved_states import FAMILIES, snapshot_difference, state, target
from contracts.law.checkpoint.multi_rank_crash import SPREAD
from contracts.spec import Checkpointing

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
