"""A step on several ranks equals the step on one rank, over the layouts: losses, every gradient, the norm, the weights.

The oracle is the same stack without the parallel axes: each rank runs the step alone (`world` 1, nothing is sent) and
over all ranks, and compares every tensor by name. In float64 only the layout can make a difference: summation order
changes results by 1e-14, and a wrong gradient is off by a visible fraction, not by rounding. Losses and norms show few
bugs of this kind: stacks have shipped wrong gradients of routers and experts with losses and norms equal to seven
digits.

Rows have unequal documents and unequal numbers of labels. T is 16 so that sequence parallel can cut it. All experts
that a selection bias keeps idle belong to one rank.
"""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.layouts import needs_layout
from contracts.checks._support.multi_rank_run import apart, gradients_apart
from contracts.checks._support.recipes import SMALL_MLA
from contracts.checks._support.replicas import replicas_apart
from contracts.checks._support.single_rank_run import on_one_rank
from contracts.checks._support.training_run import LETTERS, batch, uneven
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.spec.array import Arrays
from contracts.spec.recipe import Dsa, Mamba, Mhc, Mode, Moe, Mtp, Recipe
from contracts.spec.tolerance import EXACT, FLOAT32_SCAN
from contracts.spec.topology import Degrees
from contracts.spec.training import Execution, Observed, Precision, Session, Step, Training

MANY = replace(
    LETTERS, name="layouts", seq_length=16, moe=replace(LETTERS.moe or Moe(), experts=16),
    batch=replace(LETTERS.batch, total=4),
)  # fmt: skip
BIASED = replace(
    MANY, name="layouts-biased",
    moe=Moe(
        experts=16, top_k=3, expert_hidden=20, shared_hidden=28, score="sigmoid", selection_bias=True, bias_rate=0.25,
        aux_loss=0.3, z_loss=0.05,
    ),
)  # fmt: skip
LATENT = replace(MANY, name="layouts-mla", mla=SMALL_MLA.mla)
SPARSE = replace(LATENT, name="layouts-dsa", dsa=Dsa(a_ranks=(0,), index_heads=5, index_head_dim=8, top_k=5))
AHEAD = replace(MANY, name="layouts-mtp", mtp=Mtp(depth=2, loss_weight=0.4))
STREAMS = replace(MANY, name="layouts-mhc", mhc=Mhc(streams=3))
TIED = replace(AHEAD, name="layouts-tied", untied_embeddings=False)
SWIGLU = replace(MANY, name="layouts-swiglu", activation="swiglu")
MUON = replace(MANY, name="layouts-muon", optim=replace(MANY.optim, rule="muon"))
FEW_GROUPS = replace(MANY, name="layouts-groups", replicate_kv=True, replicate_ssm_groups=True)
"""Two KV heads and two SSM groups, and four ranks."""
ONE_GROUP = replace(
    FEW_GROUPS, name="layouts-one-group", kv_groups=1, mamba=Mamba(heads=4, head_dim=8, state=16, groups=1)
)

ROWS = (((16,), 13), ((4, 12), 0), ((1, 5, 10), 6), ((13, 3), 0))
"""Labels that count: 2, 14, 8, 14."""
IDLE = (tuple(range(8)), (12, 13, 14, 15))
"""Experts that are kept from being chosen, in the first layer that routes and in the second."""

TP, SP = Degrees(tp=2), Degrees(tp=2, sp=True)
BORROWED = Execution(layout="borrowed")


def own(world: int, degrees: Degrees, *, fsdp: bool = False, replicas: int = 1) -> Execution:
    return Execution(world=world, degrees=degrees, fsdp=fsdp, replicas=replicas)


def borrowed(world: int, degrees: Degrees, *, fsdp: bool = False, replicas: int = 1) -> Execution:
    return replace(BORROWED, world=world, degrees=degrees, fsdp=fsdp, replicas=replicas)


def within(execution: Execution, mode: Mode, *, precision: Precision = "float64", microbatches: int = 1) -> Execution:
    """The execution of a cell, in a mode and a precision; in float64 only the layout can make a difference."""
    return replace(execution, mode=mode, precision=precision, microbatches=microbatches)


Cell = tuple[Recipe, Mode, Execution, int]


def cell(recipe: Recipe, execution: Execution, mode: Mode = "nemo_native") -> Cell:
    return recipe, mode, execution, execution.world


LAYOUTS: dict[str, Cell] = {
    "tp2": cell(MANY, own(2, TP)),
    "tp2-sp": cell(MANY, own(2, SP)),
    "tp2-sp-custom-mixers": cell(MANY, own(2, SP), "author_dp"),
    "tp2-sp-latent": cell(LATENT, own(2, SP)),
    "tp2-sp-sparse": cell(SPARSE, own(2, SP)),
    "tp2-sp-prediction": cell(AHEAD, own(2, SP)),
    "tp2-sp-streams": cell(STREAMS, own(2, SP)),
    "tp2-streams": cell(STREAMS, own(2, TP)),
    "tp2-tied": cell(TIED, own(2, TP)),
    "tp2-sp-swiglu": cell(SWIGLU, own(2, SP)),
    "tp2-sp-muon": cell(MUON, own(2, SP)),
    "tp2-one-group": cell(ONE_GROUP, own(2, TP)),
    "tp2-sp-etp1": cell(MANY, own(2, Degrees(tp=2, etp=1, sp=True))),
    "tp4-few-groups": cell(FEW_GROUPS, own(4, Degrees(tp=4))),
    "tp4-sp-few-groups": cell(FEW_GROUPS, own(4, Degrees(tp=4, sp=True))),
    "dp2": cell(MANY, own(2, Degrees())),
    "fsdp2": cell(MANY, own(2, Degrees(), fsdp=True)),
    "fsdp2-prediction": cell(AHEAD, own(2, Degrees(), fsdp=True)),
    "fsdp4-tied": cell(TIED, own(4, Degrees(), fsdp=True)),
    "hsdp-2x2": cell(BIASED, own(4, Degrees(), fsdp=True, replicas=2)),
    "hsdp-2x2-muon": cell(MUON, own(4, Degrees(), fsdp=True, replicas=2)),
    "ep2-idle": cell(BIASED, own(2, Degrees(ep=2))),
    "ep4-idle": cell(BIASED, own(4, Degrees(ep=4))),
    "ep2-fsdp2": cell(MANY, own(4, Degrees(ep=2), fsdp=True)),
    "tp2-ep2": cell(MANY, own(4, Degrees(tp=2, ep=2))),
    "tp2-sp-ep2": cell(BIASED, own(4, Degrees(tp=2, ep=2, sp=True))),
    "tp2-sp-ep2-etp1": cell(SWIGLU, own(4, Degrees(tp=2, ep=2, etp=1, sp=True))),
    "tp2-ep2-etp1": cell(BIASED, own(4, Degrees(tp=2, ep=2, etp=1))),
    "tp2-sp-fsdp2": cell(MANY, own(4, SP, fsdp=True)),
    "tp2-sp-fsdp2-latent": cell(LATENT, own(4, SP, fsdp=True)),
    "borrowed-ep2-idle": cell(BIASED, borrowed(2, Degrees(ep=2))),
    "borrowed-ep2-fsdp": cell(MANY, borrowed(4, Degrees(ep=2), fsdp=True)),
    "borrowed-ep4-fsdp": cell(BIASED, borrowed(4, Degrees(ep=4), fsdp=True)),
    "borrowed-tp2-sp-ep2-etp1-fsdp": cell(BIASED, borrowed(4, Degrees(tp=2, ep=2, etp=1, sp=True), fsdp=True)),
    "borrowed-tp2-sp-ep2-etp2-fsdp": cell(MANY, borrowed(4, Degrees(tp=2, ep=2, etp=2, sp=True), fsdp=True)),
    "borrowed-tp2-sp-ep4-etp1-fsdp": cell(MUON, borrowed(4, Degrees(tp=2, ep=4, etp=1, sp=True), fsdp=True)),
    "borrowed-tp2-ep2": cell(SWIGLU, borrowed(4, Degrees(tp=2, ep=2))),
    "tp2-sp-ep2-fsdp2": cell(BIASED, own(8, Degrees(tp=2, ep=2, sp=True), fsdp=True)),
    "tp2-ep2-etp1-fsdp2": cell(MANY, own(8, Degrees(tp=2, ep=2, etp=1), fsdp=True)),
    "borrowed-hsdp2-tp2-sp-ep2": cell(BIASED, borrowed(8, Degrees(tp=2, ep=2, sp=True), fsdp=True, replicas=2)),
    "borrowed-tp2-sp-ep4-etp1-fsdp4": cell(MANY, borrowed(8, Degrees(tp=2, ep=4, etp=1, sp=True), fsdp=True)),
}  # fmt: skip


def both(stack: Training, recipe: Recipe, execution: Execution, number: int, *observe: Observed) -> tuple[Step, Step]:
    """The last of `number` steps over packed batches, on one rank and under an execution, from the same weights."""
    needs_layout(stack, execution.layout)
    weights, buffers = drawn(stack, recipe, execution.mode)
    session = Session(
        recipe=recipe,
        steps=number,
        execution=execution,
        batches=tuple(batch(f"layout {step}", rows=ROWS) for step in range(number)),
        weights=weights,
        buffers=buffers,
        observe=frozenset(observe),
        at=frozenset({number}),
    )
    alone = replace(session, execution=Execution(mode=execution.mode, precision=execution.precision))
    return on_one_rank(stack, alone).steps[-1], stack.train(session).steps[-1]


def drawn(stack: Training, recipe: Recipe, mode: Mode) -> tuple[Arrays, Arrays]:
    """Weights, and selection biases that keep some experts from being chosen, where the recipe has biases."""
    import torch

    built, found = stack.built(recipe, mode), {}
    for index, (name, shape) in enumerate(sorted(built.buffers.items())):
        bias_E = torch.zeros(shape, dtype=torch.float64)
        bias_E[list(IDLE[index % len(IDLE)])] = -4.0  # sigmoids lie in 0 … 1
        found[name] = instruments.numerics.array(bias_E)
    return uneven(built.parameters), found


def losses_apart(found: Step, want: Step, bound: float) -> str:
    """In which losses and counts two steps differ, in words."""
    if found.tokens != want.tokens:
        return f"{found.tokens} labels count, {want.tokens} on one rank"
    for name, loss in want.losses.items():
        here = found.losses.get(name, float("nan"))
        if not abs(here - loss) <= bound * max(1.0, abs(loss)):
            return f"{name} is {here:.10g}, {loss:.10g} on one rank"
    return instruments.numerics.named_apart("what was counted", found.seen, want.seen, EXACT)


@contract("PAR-01a", asks=("built", "train"), cases=LAYOUTS, source="F01", tier="dist")
def every_gradient_is_that_of_one_rank(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """On every parallel layout, losses, counts and every gradient by name equal those of the run on one rank.

    Routers, norms under sequence parallel and shared mixer weights are copies of which each rank computes a part of the
    gradient. Gradients of experts may be divided by the size of the wrong mesh. The loss shows neither bug.
    """
    alone, many = both(stack, recipe, within(execution, mode), 1, "gradients")
    words = losses_apart(many, alone, 1e-11)
    assert not words, f"{words} (rank {here().rank})"
    words = gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"


IN_FLOAT32 = {
    name: LAYOUTS[name] for name in ("tp2-sp", "fsdp2", "ep4-idle", "tp2-sp-ep2", "borrowed-tp2-sp-ep2-etp1-fsdp")
} | {
    "borrowed-cp2": cell(MANY, borrowed(2, Degrees(cp=2))),
    "borrowed-cp2-fsdp-custom-mixers": cell(AHEAD, borrowed(2, Degrees(cp=2), fsdp=True), "author_dp"),
}  # fmt: skip


@contract("PAR-01b", asks=("built", "train"), cases=IN_FLOAT32, source="F01", tier="dist")
def every_gradient_is_that_of_one_rank_in_float32(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """In float32, losses and every gradient on several ranks equal those of one rank to float32 accuracy.

    A stack may choose the dtype of its messages by the dtype of the tensors, so a run in float64 can hide a bug.
    """
    alone, many = both(stack, recipe, within(execution, mode, precision="float32"), 1, "gradients")
    words = losses_apart(many, alone, 1e-5)
    assert not words, f"{words} (rank {here().rank})"
    words = gradients_apart(alone, many, tolerance=FLOAT32_SCAN)
    assert not words, f"{words} (rank {here().rank})"


MOVED = {
    name: LAYOUTS[name]
    for name in (
        "tp2-sp-muon", "dp2", "fsdp4-tied", "hsdp-2x2", "hsdp-2x2-muon", "ep2-idle", "tp2-sp-ep2", "tp2-ep2-etp1",
        "tp2-sp-fsdp2", "borrowed-ep4-fsdp", "borrowed-tp2-sp-ep2-etp1-fsdp", "borrowed-tp2-sp-ep4-etp1-fsdp",
        "tp2-sp-ep2-fsdp2",
    )
}  # fmt: skip


@contract("PAR-02a", asks=("built", "train"), cases=MOVED, source="F02", tier="dist")
def ranks_stay_replicas_of_one_rank(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """After three steps, weights, optimizer state and router biases equal those of the run on one rank, and replicas
    are bit-identical on every rank.

    A correct first update can leave wrong state behind: a momentum of one shard, or a bias that each rank moved by its
    own counts. Copies that differ by rounding drift further apart, because each rank computes gradients of its own
    weights.
    """
    alone, many = both(stack, recipe, within(execution, mode), 3, "weights", "optimizer", "buffers")
    words = replicas_apart({**many.weights, **many.optimizer, **many.buffers})
    assert not words, words
    for what in ("weights", "optimizer", "buffers"):
        words = apart(alone, many, what, getattr(many, what), getattr(alone, what))
        assert not words, f"{words} (rank {here().rank})"


@contract("PAR-03a", asks=("built", "train"), cases=MOVED, source="F03", tier="dist")
def the_norm_and_the_clip_are_those_of_one_rank(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """The gradient norm counts every parameter once, whatever meshes the parameters lie on, and one clip coefficient
    derived from it scales all gradients, as on one rank.

    A norm that counts replicas twice or leaves experts out clips a different run than the one on one rank.
    """
    clipped = replace(recipe, optim=replace(recipe.optim, clip=0.05))
    alone, many = both(stack, clipped, within(execution, mode), 1)
    for what in ("grad_norm", "clip_coef"):
        found, want = getattr(many, what), getattr(alone, what)
        assert abs(found - want) <= 1e-11 * abs(want), f"{what} is {found:.10g}, {want:.10g} on one rank"


WINDOWS = {
    "tp2-sp": (MANY, "nemo_native", own(2, SP), 2, 3),
    "dp2": (MANY, "nemo_native", own(2, Degrees()), 2, 2),
    "fsdp2": (BIASED, "nemo_native", own(2, Degrees(), fsdp=True), 2, 2),
    "borrowed-ep2": (BIASED, "nemo_native", borrowed(2, Degrees(ep=2)), 2, 2),
    "tp2-sp-fsdp2": (AHEAD, "nemo_native", own(4, SP, fsdp=True), 4, 2),
}


@contract("PAR-05d", asks=("built", "train"), cases=WINDOWS, source="F19", tier="dist")
def a_window_on_several_ranks_is_the_batch(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int, microbatches: int
) -> None:
    """Gradient accumulation on several ranks, over microbatches with unequal numbers of labels, gives the losses and
    gradients of the whole batch at once on one rank.

    Averaging per-microbatch means over-weights tokens in microbatches with few labels.
    """
    alone, many = both(stack, recipe, within(execution, mode, microbatches=microbatches), 1, "gradients")
    words = losses_apart(many, alone, 1e-11)
    assert not words, f"{words} (rank {here().rank})"
    words = gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"
