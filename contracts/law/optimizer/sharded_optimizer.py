"""The optimizer on several ranks: its step matches one rank, sharded or not."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import traffic
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, one_rank_and_many, own_axis
from contracts.law._support.step_comparison import gradient_differences, state_differences
from contracts.law._support.training_run import large_expert_weights
from contracts.law.optimizer.updates import stale_gradient, unlike_batches
from contracts.spec import Execution, Recipe, Session, Training

MUON = replace(SPREAD, name="spread-muon", optim=replace(SPREAD.optim, rule="muon"))


SHARDED: dict[str, tuple[Recipe, Execution, int]] = {
    name: (recipe, execution, execution.world)
    for name, recipe, execution in (
        ("tp2", SPREAD, own_axis(2, tp=2)),
        ("fsdp2", SPREAD, own_axis(2, fsdp=True)),
        ("dp2-muon", MUON, own_axis(2)),
        ("fsdp2-muon", MUON, own_axis(2, fsdp=True)),
        ("ep2", SPREAD, own_axis(2, ep=2)),
        ("borrowed-ep2-muon", MUON, borrowed(2, ep=2)),
        ("tp2-sp-fsdp2-muon", MUON, own_axis(4, tp=2, sp=True, fsdp=True)),
        ("ep2-fsdp2", SPREAD, own_axis(4, ep=2, fsdp=True)),
        ("borrowed-tp2-sp-ep2-etp2-fsdp-muon", MUON, borrowed(4, tp=2, ep=2, etp=2, sp=True, fsdp=True)),
    )
}


@contract("OPT-04d", asks=("built", "train"), cases=SHARDED, source="F01 F03", tier="dist")
def a_sharded_step_is_the_step_of_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Weights and moments after each of two steps match one rank, for AdamW and Muon, with gradient clipping active.

    Adam divides by the gradient's own size, so a factor that is constant over a tensor shows neither in the loss nor,
    for a while, in the weights. The check therefore compares moments, and clips. The second step sees what the first
    left. If ranks have whole matrices and deal Muon's work out, each needs what the others moved.
    """
    for alone, many in one_rank_and_many(stack, recipe, execution, batches(2), "weights", "optimizer"):
        assert alone.clip_coef < 0.5, f"clipping does nothing here: {alone.clip_coef}"
        words = state_differences(alone, many, "weights", "optimizer")
        assert not words, words


SINGLE: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "tp2": own_axis(2, tp=2),
        "ep2": own_axis(2, ep=2),
        "tp2-sp-ep2": own_axis(4, tp=2, ep=2, sp=True),
    }.items()
}


@contract("OPT-03", asks=("built", "train"), cases=SINGLE, source="bringup", tier="dist")
def a_singleton_lane_reduces_nothing(stack: Training, execution: Execution, world: int) -> None:
    """If the effective DP size is 1, the optimizer takes the local path: a run with sharding requested sends the same
    messages as a run without, and none over a group of one rank.

    torch takes `group=None` for the world, so a reduction that looks up the group of a single rank reaches every rank.
    """
    execution = in_a_layout_of(stack, execution)
    sent = []
    for fsdp in (False, True):
        asked = replace(execution, fsdp=fsdp, precision="float64")
        session = Session(
            recipe=SPREAD, steps=1, execution=asked, batches=batches(1), weights=large_expert_weights(stack, SPREAD),
            observe=frozenset({"gradients"}),
        )  # fmt: skip
        with traffic.watched() as watch:
            stack.train(session)
        assert not watch.diverged, watch.diverged
        assert watch.issued, "no collective was seen"
        single = [each.said() for each in watch.issued if len(each.members) < 2]
        assert not single, f"{single[0]} goes over a group of one rank"
        sent.append([each.said() for each in watch.issued])
    plain, sharded = sent
    assert sharded == plain, (
        f"asked to shard, it issues {len(sharded)} collectives, otherwise {len(plain)}, though dp is 1"
    )
    ((alone, many),) = one_rank_and_many(stack, SPREAD, replace(execution, fsdp=True), batches(1), "gradients")
    words = gradient_differences(alone, many)
    assert not words, words


HALF = replace(SPREAD, name="spread-half", dtype="bf16")
HALF_MUON = replace(HALF, name="spread-half-muon", optim=MUON.optim)
STALE: dict[str, tuple[Recipe, Execution, int]] = {
    name: (
        replace(HALF_MUON if name.endswith("muon") else HALF, depth=4 if execution.degrees.pp > 1 else 5),
        execution,
        execution.world,
    )
    for name, execution in {
        "fsdp2": own_axis(2, fsdp=True),
        "fsdp2-muon": own_axis(2, fsdp=True),
        "tp2-sp": own_axis(2, tp=2, sp=True),
        "borrowed-ep2-fsdp": borrowed(2, ep=2, fsdp=True),
        "pp2": replace(own_axis(2, pp=2), microbatches=2),
        "hsdp-2x2-recomputed": replace(own_axis(4, fsdp=True, replicas=2), recompute=True),
    }.items()
}


@contract("OPT-04f", asks=("built", "train"), cases=STALE, source="F07 F19; F09", tier="dist")
def ranks_compute_with_the_weights_that_they_hold(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Under bfloat16, on several ranks, the second step's losses and gradients equal those of a run that begins with
    the weights that the first step left.

    Ranks gather, cast and cache copies of weights. A copy that an update does not reach is a step late: the loss falls
    all the same. Of two rules, each has to hand its own updates on.
    """
    execution = in_a_layout_of(stack, execution)
    weights = large_expert_weights(stack, recipe)
    given = unlike_batches("spread", recipe)
    words = stale_gradient(stack, Session(recipe=recipe, steps=2, execution=execution, batches=given, weights=weights))
    assert not words, words
