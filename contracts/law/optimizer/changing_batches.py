"""Batches that change from step to step, as a ramp of the batch size or a curriculum of lengths makes them."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support import training_run
from contracts.law._support.multi_rank_run import SPREAD, borrowed, one_rank_and_many, own_axis
from contracts.law._support.step_comparison import (
    clip_difference,
    gradient_differences,
    label_difference,
    loss_difference,
)
from contracts.law._support.training_run import AHEAD, DENSE, LETTERS, ROWS_OF_16, Rows, drawn_weights, table
from contracts.law.optimizer.updates import stale_gradient
from contracts.spec import Execution, Moe, Recipe, Session, Tokens, Training

LONGER: Rows = (
    ((24,), 20), ((10, 14), 0), ((3, 21), 5), ((24,), 0), ((12, 12), 3), ((1, 23), 17),
)  # fmt: skip
"""Six rows of 24 tokens, after or before four of 16."""
WIDE = Execution(precision="float64")
CAPPED = replace(LETTERS, name="letters-capped", moe=replace(LETTERS.moe or Moe(), capacity_factor=0.7))
CHANGES: dict[str, tuple[Recipe, Execution, bool]] = {  # whether the batch grows
    "grows": (LETTERS, WIDE, True),
    "shrinks": (LETTERS, WIDE, False),
    "capacity": (CAPPED, WIDE, True),
    "prediction-heads": (AHEAD, WIDE, False),
    "recomputed-in-microbatches": (DENSE, replace(WIDE, recompute=True, microbatches=2), True),
}


def _given(recipe: Recipe, grows: bool) -> tuple[Tokens, ...]:
    rows = (ROWS_OF_16, LONGER) if grows else (LONGER, ROWS_OF_16)
    return tuple(
        training_run.batch(f"changing {step}", recipe.vocab, each, recipe=recipe) for step, each in enumerate(rows)
    )


@contract(
    "OPT-11a", asks=("built", "train"), cases=CHANGES, sheds=("packed",), source="F19 F21; Megatron-Bridge #2609",
    needs={
        "": ("changing-batches",), "capacity": ("changing-batches", "capacity"),
        "prediction-heads": ("changing-batches", "prediction-heads"),
    },
)  # fmt: skip
def a_step_does_not_know_the_size_of_the_one_before(
    stack: Training, recipe: Recipe, execution: Execution, grows: bool
) -> None:
    """If the second batch has another number of sequences and of tokens than the first, losses and gradients of its
    step equal those of a run that begins with it, at the weights that the first step left.

    Ramps of the batch size and curricula of lengths change both. Denominators, slots of experts, masks and buffers that
    are made for the first batch fit the others only as long as nothing changes.
    """
    recipe = replace(recipe, seq_length=24)
    weights, given = drawn_weights(table(stack, recipe)), _given(recipe, grows)
    words = stale_gradient(stack, Session(recipe=recipe, steps=2, execution=execution, batches=given, weights=weights))
    assert not words, words


STAGED = replace(SPREAD, name="spread-staged", pattern="AEMR", depth=4)
LAYOUTS: dict[str, tuple[Recipe, Execution, bool, int]] = {
    name: (recipe, execution, grows, execution.world)
    for name, recipe, execution, grows in (
        ("dp2", SPREAD, own_axis(2), True),
        ("tp2-sp", SPREAD, own_axis(2, tp=2, sp=True), False),
        ("fsdp2", SPREAD, own_axis(2, fsdp=True), False),
        ("ep2", SPREAD, own_axis(2, ep=2), True),
        ("borrowed-ep2-fsdp", SPREAD, borrowed(2, ep=2, fsdp=True), True),
        ("cp2", SPREAD, borrowed(2, cp=2), True),
        ("pp2", STAGED, replace(own_axis(2, pp=2), microbatches=2), True),
    )
}


@contract(
    "OPT-11b", asks=("built", "train"), cases=LAYOUTS, source="F19 F21; Megatron-Bridge #2609", tier="dist",
    needs={"": ("changing-batches",), "ep2": ("changing-batches", "experts"),
           "borrowed-ep2-fsdp": ("changing-batches", "experts")},
)  # fmt: skip
def ranks_share_batches_that_change(
    stack: Training, recipe: Recipe, execution: Execution, grows: bool, world: int
) -> None:
    """On each layout, two steps whose batches differ in their numbers of sequences and tokens have the labels, losses,
    norms and gradients of one rank.
    """
    recipe = replace(recipe, seq_length=24)
    for alone, many in one_rank_and_many(stack, recipe, execution, _given(recipe, grows), "gradients"):
        words = label_difference(alone, many) or loss_difference(alone, many) or gradient_differences(alone, many)
        words = words or clip_difference(alone, many)
        assert not words, words
