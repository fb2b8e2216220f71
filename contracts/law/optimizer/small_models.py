"""The optimizer of a transformer with experts, on several ranks and on one."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.late import torch
from contracts.law._support.small_models import (
    BIASED_EXPERTS,
    HALF_EXPERTS,
    Cell,
    cell,
    one_rank_and_many,
    optimizer_entries,
    session,
)
from contracts.law._support.step_comparison import tensor_differences, update_difference
from contracts.law._support.transformer_layouts import BY_MUON, HALF, STEPPED, UPDATE, cells_named, needs_of
from contracts.spec import FLOAT32_MOMENTS, Execution, Recipe, Training, require_none

MOVED = STEPPED | BY_MUON
SMALL_RATE = 1e-7
"""One more or less of it moves no weight as far as a cast to bfloat16 does, and AdamW moves none farther in a step."""


@contract("OPT-04e", asks=("built", "train"), cases=MOVED, needs=needs_of(MOVED), source="F01", tier="dist")
def one_update_of_a_transformer_is_that_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """After one step of a transformer, the optimizer's moments match one rank, and every weight moves by the same
    amount in the same direction, by AdamW and by Muon.

    Sharded tensors must be clipped, averaged and decayed like whole ones. A matrix that ranks cut is orthogonalized
    whole. Gradients count once in the norm, whichever of two rules moves their weights.
    """
    asked = session(stack, recipe, execution, 1)
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, 1, "weights", "optimizer")
    found = []
    for entry in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        got, want = optimizer_entries(many.optimizer, entry), optimizer_entries(alone.optimizer, entry)
        found.append(tensor_differences(alone, many, f"{entry} of", got, want, FLOAT32_MOMENTS))
    require_none(*found, update_difference(asked.weights, many.weights, alone.weights, UPDATE))


RULED = cells_named("dense-dp2", "dense-fsdp2", "fsdp2", "borrowed-tp2-sp-ep4-etp1-fsdp")


@contract("OPT-01h", asks=("built", "train"), cases=RULED, source="F09", tier="dist")
def the_table_of_a_transformer_says_how_it_moves(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Every parameter of a transformer is in the optimizer's table once, has a gradient, and moves in the first step as
    the table says: by Adam's rule from its clipped gradient, and by its own weight decay.

    An expert that is in no parameter group does not move, and the loss falls just as well.
    """
    rows = {row.name: row for row in stack.built(recipe, "nemo_native").parameters}
    asked = session(stack, recipe, execution, 1, "gradients", "weights")
    (step,) = stack.train(asked).steps
    unequal = sorted(rows.keys() ^ step.gradients.keys())
    assert not unequal, f"{', '.join(unequal[:3])} is in only one of the optimizer's table and the gradients"
    before, after = (numerics.tensors(each) for each in (asked.weights, step.weights))
    gradients = numerics.tensors(step.gradients)
    for name, row in sorted(rows.items()):
        grad = gradients[name].double() * step.clip_coef
        lr = step.lr * row.lr_scale
        want = -lr * (grad / (grad.abs() + 1e-8) + row.weight_decay * before[name].double())
        assert torch.isfinite(want).all(), f"the gradient of {name} is not finite"
        off = numerics.distances(after[name].double() - before[name].double(), want)["L2"]
        rounding = numerics.floor(after[name].dtype, numerics.typical_size(before[name]))
        words = f"{name} did not move by {row.optimizer} with decay {row.weight_decay:g}: {off.relative:.1e}"
        assert off.times(UPDATE, rounding) <= 1, words


GIVEN: dict[str, Cell] = {
    "bf16-dp2": HALF["bf16-dp2"],
    "bf16-fsdp2": HALF["bf16-fsdp2"],
    "bf16-borrowed-ep2": cell(HALF_EXPERTS, 2, ep=2),
    "bf16-borrowed-ep2-fsdp4": HALF["bf16-borrowed-ep2-fsdp4"],
    "bf16-biased": cell(replace(BIASED_EXPERTS, dtype="bf16"), 2, tp=2, ep=2, etp=1, sp=True),
}


@contract("OPT-05f", asks=("built", "train"), cases=GIVEN, needs=needs_of(GIVEN), source="F09", tier="dist")
def what_a_run_is_given_arrives_in_float32(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """In bfloat16 on several ranks, a run starts from the float32 weights that it was given, unrounded: it still holds
    them after a step at a learning rate close to 0.

    If the optimizer makes its copies from weights that were cast already, a run that continues another one begins up
    to 0.4 % off in every weight. Experts, which have an optimizer of their own, can be cast by themselves.
    """
    still = replace(recipe, optim=replace(recipe.optim, lr=SMALL_RATE, min_lr=SMALL_RATE, weight_decay=0.0))
    asked = session(stack, still, execution, 1, "weights")
    (step,) = stack.train(asked).steps
    found = []
    before, after = (numerics.tensors(each) for each in (asked.weights, step.weights))
    for name, given in sorted(before.items()):
        off = float((after[name] - given).abs().max())
        allowed = 2 * SMALL_RATE + float(given.abs().max()) * 2**-22
        if not off <= allowed:
            found.append(f"{name} was given in float32, and is off by {off:.1e} after a step of {SMALL_RATE:g}")
    require_none(*found)
