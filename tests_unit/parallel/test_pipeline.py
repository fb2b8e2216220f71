"""What goes with a stream, and what the checks of a pipeline make of messages."""

import torch

from contracts.law.traffic import pipeline_messages as checks
from contracts.spec.messages import Message
from contracts.stacks.reference.parallel.pipeline import (
    joined,
)


def test_a_loss_joined_to_the_stream_gets_a_gradient_of_one() -> None:
    x, part = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.tensor(0.7, requires_grad=True)
    weight = torch.randn(3, 4, dtype=torch.float64)
    (joined(x, part) * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad, weight)
    assert float(part.grad) == 1.0


def _message(sends: bool, peer: int, batch: int) -> Message:
    return Message(sends=sends, peer=peer, shape=(2,), dtype="float32", batch=batch, batched=True)


def test_messages_that_all_meet_are_delivered_in_any_order_within_a_batch() -> None:
    every = [
        [_message(True, 1, 0), _message(False, 1, 0), _message(True, 1, 1)],
        [_message(True, 0, 0), _message(False, 0, 0), _message(False, 0, 1)],
    ]
    assert checks._undelivered(every) == {}


def test_two_ranks_that_send_first_wait_for_each_other() -> None:
    every = [
        [_message(True, 1, 0), _message(False, 1, 1)],
        [_message(True, 0, 0), _message(False, 0, 1)],
    ]
    assert set(checks._undelivered(every)) == {0, 1}


def test_three_ranks_in_a_circle_wait_for_each_other() -> None:
    every = [[_message(True, (rank + 1) % 3, 0), _message(False, (rank - 1) % 3, 1)] for rank in range(3)]
    assert set(checks._undelivered(every)) == {0, 1, 2}


def test_a_message_without_a_counterpart_is_reported_as_undelivered() -> None:
    assert set(checks._undelivered([[_message(False, 1, 0)], []])) == {0}
