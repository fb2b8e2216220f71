"""What is decided about a pipeline before there is one, and what its checks make of messages."""

from dataclasses import replace

import pytest
import torch

from contracts.law._support.recipes import SMALL
from contracts.law.traffic import pipeline_messages as checks
from contracts.spec.messages import Message
from contracts.spec.recipe import Mtp
from contracts.spec.topology import Degrees
from contracts.spec.training import Execution
from contracts.stacks.reference.model.build import build_model
from contracts.stacks.reference.model.parts import PARTS
from contracts.stacks.reference.parallel.pipeline import (
    Chunks,
    Piece,
    Stage,
    joined,
    pieces,
    staged,
)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("ahead", [0, 2])
def test_stages_have_every_parameter_and_share_the_embedding_where_it_is_read_twice(tied: bool, ahead: int) -> None:
    recipe = replace(
        SMALL, pattern="AE|M|RA", depth=5, untied_embeddings=not tied, mtp=Mtp(depth=ahead) if ahead else None
    )
    execution = Execution(world=3, degrees=Degrees(pp=3), microbatches=3)
    whole = {name: each.shape for name, each in build_model(recipe, Execution(), PARTS).named_parameters()}
    found: list[str] = []
    for piece in pieces(recipe, execution):
        stage = build_model(recipe, Execution(), replace(PARTS, model=staged(PARTS.model, piece)))
        names = {name: each.shape for name, each in Chunks([stage]).named_parameters()}
        assert names.items() <= whole.items()
        found += names
    twice = ["embedding.weight"] if tied or ahead else []
    assert sorted(found) == sorted([*whole, *twice])


def test_what_goes_with_a_stream_gets_a_gradient_of_one() -> None:
    x, part = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.tensor(0.7, requires_grad=True)
    weight = torch.randn(3, 4, dtype=torch.float64)
    (joined(x, part) * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad, weight)
    assert float(part.grad) == 1.0


def test_the_first_stage_has_its_layers_under_their_numbers_and_no_output() -> None:
    piece = Piece(stage=0, stages=2, layers=range(2))
    stage = build_model(
        replace(SMALL, pattern="AE|M", depth=3), Execution(), replace(PARTS, model=staged(PARTS.model, piece))
    )
    assert isinstance(stage, Stage)
    assert list(stage.layers) == ["0", "1"]
    assert stage.head is None


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


def test_a_message_without_a_counterpart_is_left() -> None:
    assert set(checks._undelivered([[_message(False, 1, 0)], []])) == {0}
