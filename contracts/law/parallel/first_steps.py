"""The start of a run on several ranks: equal initial weights on any layout, then five steps that move every parameter.

A run resumes from their checkpoint.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, traffic
from contracts.instruments.ranks import here
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import BIASED, SPREAD, batches, borrowed, own_axis, with_rungs
from contracts.law._support.saved_states import shared_folder
from contracts.law._support.step_comparison import replica_differences
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import EXACT, Execution, Recipe, Session, Step, Training

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
    words = numerics.differences("of the initial weights", step.weights, want, EXACT)
    assert not words, f"{words} (rank {here().rank})"


NEEDS = ("experts", "checkpoint")
LANES: dict[str, tuple[Recipe, Execution, int]] = {
    "borrowed-tp2-sp-ep2-etp1": (BIASED, borrowed(2, tp=2, ep=2, etp=1, sp=True), 2),
    "borrowed-ep2-fsdp2": (BIASED, borrowed(2, ep=2, fsdp=True), 2),
    "borrowed-tp2-sp-ep2-etp1-fsdp": (BIASED, borrowed(4, tp=2, ep=2, etp=1, sp=True, fsdp=True), 4),
    "tp2-sp-ep2-fsdp2": (BIASED, own_axis(8, tp=2, ep=2, sp=True, fsdp=True), 8),
}


@contract("PAR-07", asks=("built", "train"), cases=with_rungs(LANES, *NEEDS), needs=NEEDS, sheds=("packed",),
          source="bringup", tier="dist")  # fmt: skip
def the_lane_steps_and_saves(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """TP, SP, EP and FSDP2 together take five steps without a hang, every parameter moves, and a run resumes from the
    checkpoint of step 5.

    These were the milestones of the bring-up. The loss also falls when one kind of parameter never moves.
    """
    execution = in_a_layout_of(stack, execution)
    weights = large_expert_weights(stack, recipe)
    with shared_folder() as at:
        folder = str(at / "checkpoints")
        session = Session(
            recipe=recipe, steps=5, execution=execution, batches=batches(1, recipe) * 5, weights=weights,
            observe=frozenset({"weights"}), at=frozenset({5}), save=folder, save_at=frozenset({5}),
        )  # fmt: skip
        with traffic.watched() as watch:
            steps = stack.train(session).steps
        assert not watch.diverged, f"{watch.diverged} (rank {here().rank})"
        _moved(weights, steps)
        again = Session(recipe=recipe, steps=1, execution=execution, batches=batches(1, recipe), load=folder)
        gone_on = stack.train(again)
    assert gone_on.start == 5, f"the run resumed after step {gone_on.start}, saved after 5"
    before, after = steps[-1].losses["total"], gone_on.steps[0].losses["total"]
    assert after < before, f"the step after the save has loss {after:.6g}, the step before it {before:.6g}"


def _moved(weights: object, steps: tuple[Step, ...]) -> None:
    first, last = steps[0].losses["total"], steps[-1].losses["total"]
    assert last < first, f"over five steps on one batch the loss goes from {first:.6g} to {last:.6g}"
    start, end = numerics.tensors(weights), numerics.tensors(steps[-1].weights)  # type: ignore[arg-type]
    still = sorted(name for name, each in end.items() if bool((each == start[name].to(each.dtype)).all()))
    assert not still, f"after five steps {', '.join(still[:3])} did not move"
