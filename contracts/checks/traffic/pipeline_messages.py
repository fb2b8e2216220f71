"""Messages between the stages of a pipeline: in batches, each with its counterpart, and never in a circle.

Judged by what was issued. gloo takes a message that nobody receives, and sends one by itself as readily as a batch;
NCCL does neither.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.checks._support.pipeline_messages import SENT, form, messages_seen, shown
from contracts.contract import contract
from contracts.instruments.ranks import gathered
from contracts.spec.messages import Message, Messages, Messaging
from contracts.spec.recipe import Recipe
from contracts.spec.training import Execution


@contract("TRAF-02a", asks="messages", cases=SENT, source="bringup F20", tier="dist")
def every_message_has_its_counterpart(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """Between two ranks, what one sends the other receives, in the same order, of the same shape and dtype; there are
    messages, and none is left over.

    Messages have no names: a stage that counts them differently receives another microbatch, and none fails.
    """
    every = _every(messages_seen(stack, recipe, execution))
    assert any(every), "the stages send nothing to each other"
    for rank, issued in enumerate(every):
        for peer in sorted({each.peer for each in issued}):
            assert peer in {*range(world)} - {rank}, f"rank {rank} has a message with rank {peer}"
            sent = [each for each in issued if each.peer == peer and each.sends]
            taken = [each for each in every[peer] if each.peer == rank and not each.sends]
            for index, (one, other) in enumerate(zip(sent, taken, strict=False)):
                alike = (one.shape, one.dtype) == (other.shape, other.dtype)
                words = f"message {index} from rank {rank} to rank {peer} is {form(one)}, received as {form(other)}"
                assert alike, words
            words = f"rank {rank} sends {len(sent)} messages to rank {peer}, which receives {len(taken)}"
            assert len(sent) == len(taken), words


@contract("TRAF-02b", asks="messages", cases=SENT, source="bringup F20", tier="dist")
def messages_wait_in_no_circle(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """If every batch waited until all of its messages have met their counterparts, all would still be delivered.

    That is how NCCL may run them. Two ranks that both send before they receive get through on gloo, which buffers, and
    hang on the machine.
    """
    left = _undelivered(_every(messages_seen(stack, recipe, execution)))
    words = ", ".join(f"rank {rank} at {shown(each)}" for rank, each in left.items())
    assert not left, f"ranks wait for each other: {words}"


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
