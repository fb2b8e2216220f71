"""What is decided about a pipeline before there is one, and what its checks make of messages."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.law._support.recipes import SMALL
from contracts.law.traffic import pipeline_messages as checks
from contracts.spec.errors import Refused
from contracts.spec.messages import Message
from contracts.spec.recipe import Mtp, Recipe
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
    refuse_microbatches,
    staged,
)

QUICK = settings(max_examples=40)


@st.composite
def _cut(draw: st.DrawFn) -> tuple[Recipe, Execution, tuple[str, ...]]:
    pp, each = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    segments = draw(st.lists(st.text("AEMR", min_size=1, max_size=4), min_size=pp * each, max_size=pp * each))
    recipe = replace(SMALL, pattern="|".join(segments), depth=sum(map(len, segments)))
    schedule = "1f1b" if each == 1 else "interleaved"
    execution = Execution(world=pp, degrees=Degrees(pp=pp), microbatches=pp, schedule=schedule)  # type: ignore[arg-type]
    return recipe, execution, tuple(segments)


@QUICK
@given(_cut())
def test_stages_partition_the_layers_in_the_order_of_the_model(
    drawn: tuple[Recipe, Execution, tuple[str, ...]],
) -> None:
    recipe, execution, segments = drawn
    plan = pieces(recipe, execution)
    assert [layer for piece in plan for layer in piece.layers] == list(range(recipe.depth))
    assert [len(piece.layers) for piece in plan] == [len(each) for each in segments]
    assert [(piece.first, piece.last) for piece in plan] == [(at == 0, at == len(plan) - 1) for at in range(len(plan))]
    assert all(one.layers.stop == other.layers.start for one, other in pairwise(plan))


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


@QUICK
@given(st.integers(1, 12), st.integers(2, 5), st.sampled_from(["1f1b", "interleaved"]))
def test_a_number_of_microbatches_is_refused_with_both_numbers_or_can_run(
    microbatches: int, pp: int, schedule: str
) -> None:
    execution = Execution(world=pp, degrees=Degrees(pp=pp), microbatches=microbatches, schedule=schedule)  # type: ignore[arg-type]
    runs = microbatches >= pp and (schedule == "1f1b" or microbatches % pp == 0)
    if runs:
        return refuse_microbatches(execution)
    with pytest.raises(Refused) as refused:
        refuse_microbatches(execution)
    assert {str(microbatches), f"({pp})"} <= set(str(refused.value).replace(":", " ").split())
    return None


def test_what_goes_with_a_stream_gets_a_gradient_of_one() -> None:
    x, part = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.tensor(0.7, requires_grad=True)
    weight = torch.randn(3, 4, dtype=torch.float64)
    (joined(x, part) * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert part.grad is not None
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
