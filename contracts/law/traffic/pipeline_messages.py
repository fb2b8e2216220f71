"""Messages between pipeline stages: each has its counterpart, and no circle of ranks waits for each other.

The checks judge what was issued. gloo accepts a message that nobody receives, and sends an unbatched message as readily
as a batch; NCCL does neither.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments.ranks import gathered
from contracts.law._support.pipeline_run import (
    OF_TRANSFORMERS,
    SENT,
    message_text,
    messages_seen,
    shape_and_dtype,
)
from contracts.spec import Execution, Message, Messages, Messaging, Recipe


@contract(
    "TRAF-02a",
    asks="messages",
    cases=SENT | OF_TRANSFORMERS,
    needs=(),
    sheds=("packed",),
    float32=True,
    source="bringup F20",
    tier="dist",
)
def every_message_has_its_counterpart(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """Every message that a pipeline stage sends is received by its peer, in the same order, with the same shape and
    dtype, and no message is left over.

    Messages have no names: a stage that counts them differently receives another microbatch, and nothing fails. Stages
    that send nothing at all also violate the contract.
    """
    every = _every(messages_seen(stack, recipe, execution))
    assert any(every), "the stages send nothing to each other"
    for rank, issued in enumerate(every):
        for peer in sorted({each.peer for each in issued}):
            assert peer in {*range(world)} - {rank}, f"rank {rank} has a message with rank {peer}"
            sent = [each for each in issued if each.peer == peer and each.sends]
            taken = [each for each in every[peer] if each.peer == rank and not each.sends]
            for index, (one, other) in enumerate(zip(sent, taken, strict=False)):
                form, taken_as = shape_and_dtype(one), shape_and_dtype(other)
                words = f"message {index} from rank {rank} to rank {peer} is {form}, received as {taken_as}"
                assert form == taken_as, words
            words = f"rank {rank} sends {len(sent)} messages to rank {peer}, which receives {len(taken)}"
            assert len(sent) == len(taken), words


@contract(
    "TRAF-02b",
    asks="messages",
    cases=SENT | OF_TRANSFORMERS,
    needs=(),
    sheds=("packed",),
    float32=True,
    source="bringup F20",
    tier="dist",
)
def messages_wait_in_no_circle(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """Every point-to-point message is delivered even if each batch of messages waits until all of them have met their
    counterparts.

    NCCL may run batches this way. Two ranks that both send before they receive get through on gloo, which buffers, and
    hang on NCCL.
    """
    left = _undelivered(_every(messages_seen(stack, recipe, execution)))
    words = ", ".join(f"rank {rank} at {message_text(each)}" for rank, each in left.items())
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
