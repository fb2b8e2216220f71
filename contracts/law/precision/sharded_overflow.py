"""An overflow in what one rank holds of a gradient: all ranks leave the step out, and their loss scale falls alike."""

import math
from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.instruments.ranks import gathered
from contracts.law._support.small_models import DENSE, Cell, cell, session
from contracts.law.precision.loss_scale import SOURCE, scale_of
from contracts.spec import EXACT, Execution, NotOffered, Recipe, Tokens, Training

HALF = replace(DENSE, name="dense-fp16", dtype="fp16")
MUON = replace(HALF, name="dense-fp16-muon", optim=replace(HALF.optim, rule="muon"))
SHARDED: dict[str, Cell] = {
    "fsdp2": cell(HALF, 2, fsdp=True),
    "fsdp2-muon": cell(MUON, 2, fsdp=True),
    "tp2-sp": cell(HALF, 2, tp=2, sp=True),
    "tp2-sp-fsdp2": cell(HALF, 4, tp=2, sp=True, fsdp=True),
}


@contract("PREC-05l", asks=("built", "train"), cases=SHARDED, tier="dist", source=SOURCE)
def an_overflow_in_one_shard_is_everybody_s(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under float16, if only one rank's part of a gradient is not finite, the step changes no bit of weights and
    optimizer state on any rank, and the loss scale falls on all ranks alike.

    A gradient that is reduced is finite or not on all ranks alike; one that is cut is not. A rank that looks at its own
    part takes the step, and has other weights and another scale from then on. Here every label is among the first rows
    of the output projection, whose gradient is large there; a stack that makes it in float32 is not asked.
    """
    numerics = instruments.numerics
    asked = session(stack, recipe, execution, 3, "gradients", "weights", "optimizer")
    held = numerics.tensors(asked.weights)
    heads = [row.name for row in stack.built(recipe, execution.mode).parameters if row.role == "head"]
    for row in stack.built(recipe, execution.mode).parameters:
        if row.role == "head" or (row.role == "norm" and row.layer is None):
            held[row.name] *= 2**-5 if row.role == "head" else 2**3
    first, *later = asked.batches
    given = (first, *(_with_one_label(each) for each in later))
    before, *skipped = stack.train(replace(asked, batches=given, weights=numerics.arrays(held))).steps
    for step in skipped:
        grad_VD = numerics.tensor(step.gradients[heads[0]])
        if (
            not math.isfinite(before.grad_norm)
            or grad_VD.isfinite().all()
            or not grad_VD[len(grad_VD) // 2 :].isfinite().all()
        ):
            raise NotOffered("overflows elsewhere than in the first rows of its output projection", "case")
        for kind, what in (("weights", "the weight"), ("optimizer", "the optimizer state")):
            words = numerics.differences(what, getattr(step, kind), getattr(before, kind), EXACT)
            assert not words, f"a step that overflowed in one rank's part of a gradient moved: {words}"
    scales = gathered([scale_of(step) for step in (before, skipped[-1])])
    for rank, (was, now) in enumerate(scales):
        assert now < was, f"the loss scale of rank {rank} is {now:g} after two steps that overflowed, {was:g} before"
        assert [was, now] == scales[0], f"the loss scale of rank {rank} is {now:g}, that of rank 0 {scales[0][1]:g}"


def _with_one_label(given: Tokens) -> Tokens:
    """A batch in which two labels count, both 3."""
    labels_BT = instruments.numerics.tensor(given.labels)
    labels_BT[:, :-2] = -100
    labels_BT[:, -2] = 3
    labels_BT[:, -1] = -100
    labels_BT[2:] = -100
    return replace(given, labels=instruments.numerics.array(labels_BT))
