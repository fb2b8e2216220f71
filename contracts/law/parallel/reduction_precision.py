"""In which dtype ranks reduce gradients, and whether the loss scale is removed from them."""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, own_axis, with_rungs
from contracts.law._support.step_comparison import (
    gradient_differences,
    loss_difference,
    on_one_rank,
    on_one_rank_and_many,
)
from contracts.law._support.training_run import large_expert_weights
from contracts.spec.recipe import Recipe
from contracts.spec.tolerance import FLOAT32_SCAN
from contracts.spec.training import Execution, Session, Training

HALF = replace(SPREAD, name="spread-half", dtype="bf16")
MIXED: dict[str, tuple[Recipe, Execution, int]] = {
    name: (HALF, execution, execution.world)
    for name, execution in {
        "dp2": own_axis(2),
        "fsdp2": own_axis(2, fsdp=True),
        "borrowed-ep2": borrowed(2, ep=2),
        "hsdp-2x2": own_axis(4, fsdp=True, replicas=2),
    }.items()
}
TRAINED: dict[str, tuple[Recipe, Execution, int]] = {name: MIXED[name] for name in ("dp2", "fsdp2", "hsdp-2x2")} | {
    "fsdp2-recomputed": (HALF, replace(own_axis(2, fsdp=True), recompute=True), 2)
}


@contract("PAR-10", asks=("built", "train"), cases=with_rungs(MIXED), needs=(), sheds=("packed",), source="hub; F09",
          tier="dist")  # fmt: skip
def mixed_precision_reduces_in_float32(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under bfloat16, gradients are reduced in float32, parameters keep their declared dtype, and the loss scale is
    removed from gradients exactly once.

    In a bfloat16 sum over many ranks, small gradients vanish beside large ones. bfloat16 itself changes a gradient norm
    by a few percent here; a loss scale that is left in multiplies it.
    """
    execution = in_a_layout_of(stack, execution)
    weights = large_expert_weights(stack, recipe)
    session = Session(
        recipe=recipe, steps=1, execution=execution, batches=batches(1, recipe), weights=weights,
        observe=frozenset({"gradients", "weights"}),
    )  # fmt: skip
    with instruments.traffic.watched() as watch:
        (step,) = stack.train(session).steps
    assert not watch.diverged, watch.diverged
    for each in watch.of("all_reduce", "reduce_scatter"):
        low = [dtype for dtype in each.dtypes if dtype in ("bfloat16", "float16")]
        assert not low, f"{each.said()} over {list(each.members)} reduces in {low[0]}"
    for row in stack.built(recipe, execution.mode).parameters:
        found = step.weights[row.name].dtype
        assert found == row.dtype, f"{row.name} is held in {found}, declared {row.dtype}"
    single = replace(session, recipe=replace(recipe, dtype="fp32"), execution=Execution(precision="float32"))
    (alone,) = on_one_rank(stack, single).steps
    ratio = step.grad_norm / alone.grad_norm
    assert 0.8 < ratio < 1.25, f"the norm of the gradient is {ratio:.3g} times that in float32"


@contract("PAR-10a", asks=("built", "train"), cases=with_rungs(TRAINED, "mamba"), needs=("mamba",), sheds=("packed",),
          source="DeepSpeed#5170; Automodel#2484; F01",
          tier="dist")  # fmt: skip
def mixed_precision_gradients_are_those_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Under bfloat16, losses and every gradient by name on several data-parallel ranks equal those of one rank whose
    microbatches are their shares, to float32 accuracy.

    The same rows are then rounded in the same places, and only float32 sums differ. A parameter that is rounded when it
    is gathered, or a float32 gradient that was not reduced because its 16-bit copy was, is off by a visible fraction.
    """
    execution = in_a_layout_of(stack, execution)
    session = Session(
        recipe=recipe, steps=1, execution=execution, batches=batches(1, recipe),
        weights=large_expert_weights(stack, recipe),
        observe=frozenset({"gradients"}),
    )  # fmt: skip
    ((one, many),) = on_one_rank_and_many(stack, session, microbatches=world)
    words = loss_difference(one, many, bound=1e-5) or gradient_differences(one, many, tolerance=FLOAT32_SCAN)
    assert not words, words
