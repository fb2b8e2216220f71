"""What a run of several ranks begins with, and what its optimizer makes of it: as on one rank, sharded or not."""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._layouts import needs_layout
from contracts.checks._refusals import refusal_of
from contracts.checks.numeric._alone import on_one_rank
from contracts.checks.numeric._replicas import replicas_apart
from contracts.checks.numeric._spread import SPREAD, apart, batches, borrowed, both, gradients_apart, heavy, own
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.spec.array import Array
from contracts.spec.recipe import Recipe
from contracts.spec.tolerance import EXACT
from contracts.spec.training import Execution, Session, Training

MUON = replace(SPREAD, name="spread-muon", optim=replace(SPREAD.optim, rule="muon"))

SHARDED: dict[str, tuple[Recipe, Execution, int]] = {
    name: (recipe, execution, execution.world)
    for name, recipe, execution in (
        ("tp2", SPREAD, own(2, tp=2)),
        ("fsdp2", SPREAD, own(2, fsdp=True)),
        ("fsdp2-muon", MUON, own(2, fsdp=True)),
        ("ep2", SPREAD, own(2, ep=2)),
        ("borrowed-ep2-muon", MUON, borrowed(2, ep=2)),
        ("tp2-sp-fsdp2-muon", MUON, own(4, tp=2, sp=True, fsdp=True)),
        ("ep2-fsdp2", SPREAD, own(4, ep=2, fsdp=True)),
        ("borrowed-tp2-sp-ep2-etp2-fsdp-muon", MUON, borrowed(4, tp=2, ep=2, etp=2, sp=True, fsdp=True)),
    )
}


@contract("OPT-04d", asks=("built", "train"), cases=SHARDED, source="F01 F03", tier="dist")
def a_sharded_step_is_the_step_of_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Weights and moments after each of two steps are those of one rank, for AdamW and Muon, with clipping at work.

    Adam divides by the gradient's own size, so a factor that is constant over a tensor shows neither in the loss nor,
    for a while, in the weights: moments are compared, and clipping is on. The second step sees what the first left.
    """
    for alone, many in both(stack, recipe, execution, batches(2), "weights", "optimizer"):
        assert alone.clip_coef < 0.5, f"clipping does nothing here: {alone.clip_coef}"
        for what, got, want in (
            ("the weights after", many.weights, alone.weights),
            ("the moments after", many.optimizer, alone.optimizer),
        ):
            words = apart(alone, many, f"{what} step {alone.number}:", got, want)
            assert not words, f"{words} (rank {here().rank})"


STILL = replace(SPREAD, name="spread-still", optim=replace(SPREAD.optim, lr=1e-60, min_lr=1e-61))
"""A rate that moves no float32: the weights after a step are those before it."""
BEGUN: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "tp2": own(2, tp=2),
        "dp2": own(2),
        "fsdp2": own(2, fsdp=True),
        "ep2": own(2, ep=2),
        "borrowed-ep2": borrowed(2, ep=2),
        "tp2-sp-ep2": own(4, tp=2, ep=2, sp=True),
        "hsdp-2x2": own(4, fsdp=True, replicas=2),
    }.items()
}


@contract("PAR-04g", asks=("initial", "train"), cases=BEGUN, source="F14", tier="dist")
def a_run_begins_with_the_same_weights_on_any_layout(stack: Training, execution: Execution, world: int) -> None:
    """What a run of several ranks begins with is `initial`, tensor by tensor: unique where it is sharded, equal where
    it is replicated.

    Seeds without the rank give every shard the same rows; seeds with it set replicas apart.
    """
    needs_layout(stack, execution.layout)
    (step,) = stack.train(
        Session(recipe=STILL, steps=1, execution=execution, batches=batches(1), observe=frozenset({"weights"}))
    ).steps
    words = replicas_apart(step.weights)
    assert not words, f"{words} at the start"
    want = stack.initial(STILL, execution.mode)
    words = instruments.numerics.named_apart("of the initial weights", step.weights, want, EXACT)
    assert not words, f"{words} (rank {here().rank})"


SINGLE: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "tp2": own(2, tp=2),
        "ep2": own(2, ep=2),
        "tp2-sp-ep2": own(4, tp=2, ep=2, sp=True),
    }.items()
}


@contract("OPT-03", asks=("built", "train"), cases=SINGLE, source="bringup", tier="dist")
def a_singleton_lane_reduces_nothing(stack: Training, execution: Execution, world: int) -> None:
    """Where effective DP is 1 the optimizer takes the local path: asked to shard, a run sends what it sends unasked,
    and no message goes over a group of one.

    torch takes `group=None` for the world: a reduction that looks up the group of a single rank finds everybody.
    """
    needs_layout(stack, execution.layout)
    sent = []
    for fsdp in (False, True):
        asked = replace(execution, fsdp=fsdp, precision="float64")
        session = Session(
            recipe=SPREAD, steps=1, execution=asked, batches=batches(1), weights=heavy(stack, SPREAD),
            observe=frozenset({"gradients"}),
        )  # fmt: skip
        with instruments.traffic.watched() as watch:
            stack.train(session)
        assert not watch.diverged, watch.diverged
        assert watch.issued, "no collective was seen"
        single = [each.said() for each in watch.issued if len(each.members) < 2]
        assert not single, f"{single[0]} goes over a group of one rank"
        sent.append([each.said() for each in watch.issued])
    plain, sharded = sent
    assert sharded == plain, (
        f"asked to shard it issues {len(sharded)} collectives, {len(plain)} unasked, though dp is 1"
    )
    ((alone, many),) = both(stack, SPREAD, replace(execution, fsdp=True), batches(1), "gradients")
    words = gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"


HALF = replace(SPREAD, name="spread-half", dtype="bf16")
MIXED: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "dp2": own(2),
        "fsdp2": own(2, fsdp=True),
        "borrowed-ep2": borrowed(2, ep=2),
        "hsdp-2x2": own(4, fsdp=True, replicas=2),
    }.items()
}


@contract("PAR-10", asks=("built", "train"), cases=MIXED, source="hub; F09", tier="dist")
def mixed_precision_reduces_in_float32(stack: Training, execution: Execution, world: int) -> None:
    """Under bfloat16 gradients meet in float32, parameters keep their declared dtype, and the scale of the loss goes
    out of them once.

    Summed in bfloat16 over many ranks, small gradients vanish beside large ones. What bfloat16 does to a gradient here
    is a few percent of it; a scale that is left in is a factor.
    """
    needs_layout(stack, execution.layout)
    weights = heavy(stack, SPREAD)
    session = Session(
        recipe=HALF, steps=1, execution=execution, batches=batches(1), weights=weights,
        observe=frozenset({"gradients", "weights"}),
    )  # fmt: skip
    with instruments.traffic.watched() as watch:
        (step,) = stack.train(session).steps
    assert not watch.diverged, watch.diverged
    for each in watch.of("all_reduce", "reduce_scatter"):
        low = [dtype for dtype in each.dtypes if dtype in ("bfloat16", "float16")]
        assert not low, f"{each.said()} over {list(each.members)} reduces in {low[0]}"
    for row in stack.built(HALF, execution.mode).parameters:
        found = step.weights[row.name].dtype
        assert found == row.dtype, f"{row.name} is held in {found}, declared {row.dtype}"
    single = replace(session, recipe=SPREAD, execution=Execution(precision="float32"))
    (alone,) = on_one_rank(stack, single).steps
    ratio = step.grad_norm / alone.grad_norm
    assert 0.8 < ratio < 1.25, f"the norm of the gradient is {ratio:.3g} times that in float32"


IDLE: dict[str, tuple[Execution, int, int, str]] = {
    "a-rank-without-a-sequence": (own(2), 2, 1, "sequences"),
    "a-rank-without-a-sequence-of-4": (own(4, fsdp=True), 4, 3, "sequences"),
    "a-run-of-uneven-length": (own(2, tp=2, sp=True), 2, 4, "sequence length"),
}


@contract("TOPO-10d", asks=("built", "train"), cases=IDLE, source="modal F21", tier="dist")
def no_rank_is_left_without_work(stack: Training, execution: Execution, world: int, rows: int, field: str) -> None:
    """A batch that leaves a rank without a sequence, or cuts sequences unevenly, is refused by every rank before it
    sends anything.

    The rank that has nothing optimises its empty shard differently, and the others wait.
    """
    needs_layout(stack, execution.layout)
    (given,) = batches(1)
    length = 15 if field == "sequence length" else 16
    cut = {name: _cut(getattr(given, name), rows, length) for name in ("tokens", "labels", "documents")}
    session = Session(recipe=SPREAD, steps=1, execution=execution, batches=(replace(given, **cut),))
    with instruments.traffic.watched() as watch:
        refusal = refusal_of(stack.train, session)
    sent = watch.of("all_to_all", "all_gather", "reduce_scatter")
    assert field in str(refusal), f"the refusal names no {field}: {refusal}"
    assert not sent, f"{sent[0].said()} was sent before the refusal"


def _cut(value: Array, rows: int, length: int) -> Array:
    numerics = instruments.numerics
    return numerics.array(numerics.tensor(value)[:rows, :length])
