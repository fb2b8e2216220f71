"""Messages between the stages of a pipeline: in batches, each with its counterpart, and never in a circle.

Judged by what was issued. gloo takes a message that nobody receives, and sends one by itself as readily as a batch;
NCCL does neither.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from contracts.checks.numeric._stages import (
    AHEAD,
    BESIDE_DP,
    HALVES,
    IN_FOUR,
    IN_TWO,
    INTERLEAVED,
    QUARTERS,
    TIED,
    TIED_AHEAD_QUARTERS,
    Flow,
    flow,
    given,
)  # fmt: skip
from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.spec.messages import Message, Messages, Messaging
from contracts.spec.recipe import Recipe
from contracts.spec.training import Execution, Session

SENT: dict[str, Flow] = {
    "two-stages": flow(HALVES, IN_TWO),
    "tied": flow(TIED, IN_TWO),
    "interleaved": flow(QUARTERS, INTERLEAVED),
    "four-stages": flow(TIED_AHEAD_QUARTERS, IN_FOUR),
}
COVERED: dict[str, Flow] = {"the-world": flow(HALVES, IN_TWO), "two-of-four": flow(AHEAD, BESIDE_DP)}
"""What the ranks of a pipeline cover: all ranks, or as many as there are beside them."""


@contract("PAR-09", asks="messages", cases=SENT, source="bringup", tier="dist")
def stages_send_in_batches(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """Every message between stages is issued by a call that takes a batch, in the first step as in later ones, and
    nothing warns of point-to-point messages.

    A message by itself makes NCCL open a communicator for two ranks while others wait; the bring-up hung there, and
    torch's schedules send batches of one direction so.
    """
    seen = _seen(stack, recipe, execution)
    single = [each for each in seen.issued if not each.batched]
    words = f"rank {here().rank} issues {len(single)} of {len(seen.issued)} messages by themselves"
    assert not single, f"{words}, the first {_shown(single[0])}"
    warned = [each for each in seen.warnings if "p2p" in each.lower() or "point-to-point" in each.lower()]
    assert not warned, f"rank {here().rank} is warned: {warned[0]}"


@contract("TRAF-02a", asks="messages", cases=SENT, source="bringup F20", tier="dist")
def every_message_has_its_counterpart(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """Between two ranks, what one sends the other receives, in the same order, of the same shape and dtype; there are
    messages, and none is left over.

    Messages have no names: a stage that counts them differently receives another microbatch, and none fails.
    """
    every = _every(_seen(stack, recipe, execution))
    assert any(every), "the stages send nothing to each other"
    for rank, issued in enumerate(every):
        for peer in sorted({each.peer for each in issued}):
            assert peer in {*range(world)} - {rank}, f"rank {rank} has a message with rank {peer}"
            sent = [each for each in issued if each.peer == peer and each.sends]
            taken = [each for each in every[peer] if each.peer == rank and not each.sends]
            for index, (one, other) in enumerate(zip(sent, taken, strict=False)):
                alike = (one.shape, one.dtype) == (other.shape, other.dtype)
                words = f"message {index} from rank {rank} to rank {peer} is {_form(one)}, received as {_form(other)}"
                assert alike, words
            words = f"rank {rank} sends {len(sent)} messages to rank {peer}, which receives {len(taken)}"
            assert len(sent) == len(taken), words


@contract("TRAF-02b", asks="messages", cases=SENT, source="bringup F20", tier="dist")
def messages_wait_in_no_circle(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """If every batch waited until all of its messages have met their counterparts, all would still be delivered.

    That is how NCCL may run them. Two ranks that both send before they receive get through on gloo, which buffers, and
    hang on the machine.
    """
    left = _undelivered(_every(_seen(stack, recipe, execution)))
    words = ", ".join(f"rank {rank} at {_shown(each)}" for rank, each in left.items())
    assert not left, f"ranks wait for each other: {words}"


@contract("TOPO-07f", asks="messages", cases=COVERED, source="bringup", tier="dist")
def a_pipeline_makes_no_second_group(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """A run holds one process group for the same members: the pipeline uses the group that covers its ranks.

    The bring-up made a PP group beside the DP group of the same ranks, and hung in `new_group` now and then.
    """
    seen = _seen(stack, recipe, execution)
    made = Counter(frozenset(group) for group in seen.held) - Counter(frozenset(group) for group in seen.before)
    whole = frozenset(range(world))
    assert whole not in made, f"rank {here().rank} makes a group of all {world} ranks beside the world's"
    for members, count in made.items():
        assert count == 1, f"rank {here().rank} makes {count} groups of {sorted(members)}"


def _seen(stack: Messaging, recipe: Recipe, execution: Execution) -> Messages:
    """Two steps: the first is where stages get to know each other."""
    precise = replace(execution, precision="float64")
    return stack.messages(Session(recipe=recipe, steps=2, execution=precise, batches=given(2)))


def _every(seen: Messages) -> list[list[Message]]:
    """The messages of every rank, by rank."""
    rows = [[each.sends, each.peer, each.shape, each.dtype, each.batch, each.batched] for each in seen.issued]
    names = ("sends", "peer", "shape", "dtype", "batch", "batched")
    return [
        [replace(Message(**dict(zip(names, row, strict=True))), shape=tuple(row[2])) for row in its]
        for its in gathered(rows)
    ]


def _undelivered(every: list[list[Message]]) -> dict[int, Message]:
    """Rank → the first message that it cannot get past, when each batch ends before the next of its rank begins."""
    queues = [_batches(issued) for issued in every]
    while True:
        open_ = {rank: queue[0] for rank, queue in enumerate(queues) if queue}
        for rank, batch in open_.items():
            for each in list(batch):
                match = next((other for other in open_.get(each.peer, ()) if _meet(rank, each, other)), None)
                if match is not None:
                    batch.remove(each)
                    open_[each.peer].remove(match)
        done = [queue for queue in queues if queue and not queue[0]]
        if not done:
            return {rank: batch[0] for rank, batch in open_.items()}
        for queue in done:
            queue.pop(0)


def _batches(issued: list[Message]) -> list[list[Message]]:
    found: dict[int, list[Message]] = {}
    for each in issued:
        found.setdefault(each.batch, []).append(each)
    return list(found.values())


def _meet(rank: int, one: Message, other: Message) -> bool:
    return other.peer == rank and other.sends != one.sends


def _shown(message: Message) -> str:
    way = "to" if message.sends else "from"
    return f"{'a send' if message.sends else 'a receive'} of {_form(message)} {way} rank {message.peer}"


def _form(message: Message) -> str:
    return f"{'x'.join(map(str, message.shape))} {message.dtype}"
