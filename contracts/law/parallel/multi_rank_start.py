"""The initial weights of a run on several ranks, sharded or replicated."""

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, own_axis, with_rungs
from contracts.law._support.step_comparison import replica_differences
from contracts.spec import EXACT, Execution, Recipe, Session, Training

STILL = replace(SPREAD, name="spread-still", optim=replace(SPREAD.optim, lr=1e-60, min_lr=1e-61))
"""A learning rate too small to move a float32: the weights after a step are the initial ones."""


BEGUN: dict[str, tuple[Recipe, Execution, int]] = {
    name: (STILL, execution, execution.world)
    for name, execution in {
        "tp2": own_axis(2, tp=2),
        "dp2": own_axis(2),
        "fsdp2": own_axis(2, fsdp=True),
        "fsdp2-recomputed": replace(own_axis(2, fsdp=True), recompute=True),
        "dp2-compiled": replace(own_axis(2), compile="blocks", backend="eager"),  # any backend wraps
        "ep2": own_axis(2, ep=2),
        "borrowed-ep2": borrowed(2, ep=2),
        "tp2-sp-ep2": own_axis(4, tp=2, ep=2, sp=True),
        "hsdp-2x2": own_axis(4, fsdp=True, replicas=2),
        "ep2-fsdp2": own_axis(4, ep=2, fsdp=True),
        "borrowed-ep2-fsdp": borrowed(4, ep=2, fsdp=True),
    }.items()
}


@contract("PAR-04g", asks=("initial", "train"), cases=with_rungs(BEGUN), needs=(), sheds=("packed",), source="F14",
          tier="dist")  # fmt: skip
def a_run_begins_with_the_same_weights_on_any_layout(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """A run on several ranks starts from `initial`, tensor by tensor: every shard is its own part, and every replica is
    equal.

    With a seed that ignores the rank, every shard gets the same rows. With a seed that includes the rank, replicas
    differ. Wrappers change the names by which an initialiser knows what it draws, and how.
    """
    execution = in_a_layout_of(stack, execution)
    (step,) = stack.train(
        Session(recipe=recipe, steps=1, execution=execution, batches=batches(1, recipe), observe=frozenset({"weights"}))
    ).steps
    words = replica_differences(step.weights)
    assert not words, f"{words} at the start"
    want = stack.initial(recipe, execution.mode)
    words = instruments.numerics.differences("of the initial weights", step.weights, want, EXACT)
    assert not words, f"{words} (rank {here().rank})"
