"""A step on several ranks equals the step on one rank, over the layouts: losses, every gradient, the norm, the weights.

The oracle is the same stack without the parallel axes: each rank runs the step by itself (`world` 1, nothing is sent)
and over all ranks, and compares every tensor by name. In float64 only the layout can make a difference: summation order
changes results by 1e-14, and a wrong gradient is off by a visible fraction, not by rounding. Losses and norms show few
bugs of this kind: stacks have shipped wrong gradients of routers and experts with losses and norms equal to seven
digits.

Rows have unequal documents and unequal numbers of labels. T is 16 so that sequence parallel can cut it. All experts
that a selection bias keeps idle belong to one rank.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import borrowed, own_axis
from contracts.law._support.recipes import SMALL_MLA
from contracts.law._support.step_comparison import (
    clip_difference,
    gradient_differences,
    label_difference,
    loss_difference,
    on_one_rank_and_many,
    replica_differences,
    state_differences,
)
from contracts.law._support.training_run import IDLE, LETTERS, ROWS_OF_16, batches, drawn_weights, selection_biases
from contracts.spec import (
    EXACT,
    FLOAT32_SCAN,
    Dsa,
    Execution,
    Mamba,
    Mhc,
    Mode,
    Moe,
    Mtp,
    Observed,
    ParallelSsm,
    Precision,
    Recipe,
    Session,
    Step,
    Training,
)

MANY = replace(
    LETTERS, name="layouts", seq_length=16, moe=replace(LETTERS.moe or Moe(), experts=16),
    batch=replace(LETTERS.batch, total=4),
)  # fmt: skip
BIASED = replace(
    MANY, name="layouts-biased", norm_eps=1e-2,
    moe=Moe(
        experts=16, top_k=3, expert_hidden=20, shared_hidden=28, score="sigmoid", selection_bias=True, bias_rate=0.25,
        aux_loss=0.3, z_loss=0.05,
    ),
)  # fmt: skip
TOP_1 = replace(BIASED, name="layouts-top-1", moe=replace(BIASED.moe or Moe(), top_k=1))
"""One expert a token. Its gate is its sigmoid, so that the router has a gradient of the loss."""
LATENT = replace(MANY, name="layouts-mla", mla=SMALL_MLA.mla)
SPARSE = replace(LATENT, name="layouts-dsa", dsa=Dsa(a_ranks=(0,), index_heads=5, index_head_dim=8, top_k=7))
AHEAD = replace(MANY, name="layouts-mtp", mtp=Mtp(depth=2, loss_weight=0.4))
STREAMS = replace(MANY, name="layouts-mhc", mhc=Mhc(streams=3))
PARALLEL_SSM = ParallelSsm(attention_scale=0.75, ssm_scale=1.5)
PARALLEL = replace(MANY, name="layouts-side-by-side", pattern="AE", depth=3, parallel_ssm=PARALLEL_SSM)
TIED = replace(AHEAD, name="layouts-tied", untied_embeddings=False)
SWIGLU = replace(MANY, name="layouts-swiglu", activation="swiglu")
MUON = replace(MANY, name="layouts-muon", optim=replace(MANY.optim, rule="muon"))
BIASED_EVERYWHERE = replace(AHEAD, name="layouts-biases", biases=("attention", "mlp", "experts", "router"))
CAPPED = replace(MANY, name="layouts-capacity", moe=replace(MANY.moe or Moe(), capacity_factor=0.7))
GROUPED = replace(
    MANY, name="layouts-groups-of-experts", moe=replace(MANY.moe or Moe(), top_k=4, score="sigmoid", groups=(4, 2))
)
RANKED = replace(CAPPED, moe=replace(CAPPED.moe or Moe(), drop_policy="probs"))
FEW_GROUPS = replace(MANY, name="layouts-groups", replicate_kv=True, replicate_ssm_groups=True)
"""Two KV heads and two SSM groups, and four ranks."""
ONE_GROUP = replace(
    FEW_GROUPS, name="layouts-one-group", kv_groups=1, mamba=Mamba(heads=4, head_dim=8, state=16, groups=1)
)
THIRDS = replace(
    MANY, name="layouts-thirds", ffn_hidden=42, heads=6, kv_groups=3, batch=replace(MANY.batch, total=12),
    mamba=Mamba(heads=6, head_dim=8, state=16, groups=3),
    moe=replace(MANY.moe or Moe(), experts=15, expert_hidden=21, shared_hidden=27),
)  # fmt: skip
"""For three ranks: a tree of pairs, a mask of bits and a size that is halved are right for two and four only."""


def within(execution: Execution, mode: Mode, *, precision: Precision = "float64", microbatches: int = 1) -> Execution:
    """The execution of a cell, in a mode and a precision; in float64 only the layout can make a difference."""
    return replace(execution, mode=mode, precision=precision, microbatches=microbatches)


Cell = tuple[Recipe, Mode, Execution, int]


def cell(recipe: Recipe, execution: Execution, mode: Mode = "nemo_native") -> Cell:
    return recipe, mode, execution, execution.world


LAYOUTS: dict[str, Cell] = {
    "tp2": cell(MANY, own_axis(2, tp=2)),
    "tp2-sp": cell(MANY, own_axis(2, tp=2, sp=True)),
    "tp2-sp-custom-mixers": cell(MANY, own_axis(2, tp=2, sp=True), "author_dp"),
    "tp2-latent": cell(LATENT, own_axis(2, tp=2)),
    "tp2-sparse": cell(SPARSE, own_axis(2, tp=2)),
    "tp2-sp-latent": cell(LATENT, own_axis(2, tp=2, sp=True)),
    "tp2-sp-sparse": cell(SPARSE, own_axis(2, tp=2, sp=True)),
    "tp2-sp-prediction": cell(AHEAD, own_axis(2, tp=2, sp=True)),
    "tp2-sp-streams": cell(STREAMS, own_axis(2, tp=2, sp=True)),
    "tp2-streams": cell(STREAMS, own_axis(2, tp=2)),
    "tp2-side-by-side": cell(PARALLEL, own_axis(2, tp=2)),
    "tp2-sp-side-by-side": cell(PARALLEL, own_axis(2, tp=2, sp=True), "author_dp"),
    "tp2-sp-fsdp2-side-by-side": cell(PARALLEL, own_axis(4, tp=2, sp=True, fsdp=True)),
    "tp4-side-by-side": cell(replace(FEW_GROUPS, pattern="A", depth=1, parallel_ssm=PARALLEL_SSM), own_axis(4, tp=4)),
    "tp2-tied": cell(TIED, own_axis(2, tp=2)),
    "tp2-sp-swiglu": cell(SWIGLU, own_axis(2, tp=2, sp=True)),
    "tp2-sp-muon": cell(MUON, own_axis(2, tp=2, sp=True)),
    "tp2-sp-biased": cell(BIASED_EVERYWHERE, own_axis(2, tp=2, sp=True)),
    "tp2-one-group": cell(ONE_GROUP, own_axis(2, tp=2)),
    "tp2-capacity": cell(CAPPED, own_axis(2, tp=2)),
    "tp2-sp-etp1": cell(MANY, own_axis(2, tp=2, etp=1, sp=True)),
    "tp2-sp-etp1-capacity": cell(CAPPED, own_axis(2, tp=2, etp=1, sp=True)),
    "tp2-sp-etp1-capacity-by-gate": cell(RANKED, own_axis(2, tp=2, etp=1, sp=True)),
    "tp2-sp-etp1-groups": cell(GROUPED, own_axis(2, tp=2, etp=1, sp=True)),
    "borrowed-ep2-groups": cell(GROUPED, borrowed(2, ep=2)),
    "ep2-capacity-of-groups": cell(
        replace(GROUPED, moe=replace(GROUPED.moe or Moe(), capacity_factor=0.7)), own_axis(2, ep=2)
    ),
    "tp4-few-groups": cell(FEW_GROUPS, own_axis(4, tp=4)),
    "tp4-sp-few-groups": cell(FEW_GROUPS, own_axis(4, tp=4, sp=True)),
    "dp2": cell(MANY, own_axis(2)),
    "dp2-streams": cell(STREAMS, own_axis(2)),
    "dp3": cell(THIRDS, own_axis(3)),
    "fsdp3": cell(THIRDS, own_axis(3, fsdp=True)),
    "tp3": cell(THIRDS, own_axis(3, tp=3)),
    "ep3": cell(THIRDS, own_axis(3, ep=3)),
    "borrowed-ep3-fsdp": cell(THIRDS, borrowed(3, ep=3, fsdp=True)),
    "fsdp2": cell(MANY, own_axis(2, fsdp=True)),
    "fsdp2-streams": cell(STREAMS, own_axis(2, fsdp=True)),
    "fsdp2-prediction": cell(AHEAD, own_axis(2, fsdp=True)),
    "fsdp2-sparse": cell(SPARSE, own_axis(2, fsdp=True)),  # an indexer that nothing trains, beside what is trained
    "fsdp4-tied": cell(TIED, own_axis(4, fsdp=True)),
    "hsdp-2x2": cell(BIASED, own_axis(4, fsdp=True, replicas=2)),
    "hsdp-2x2-muon": cell(MUON, own_axis(4, fsdp=True, replicas=2)),
    "hsdp-2x2-tied": cell(TIED, own_axis(4, fsdp=True, replicas=2)),
    "ep2-idle": cell(BIASED, own_axis(2, ep=2)),
    "ep2-capacity": cell(CAPPED, own_axis(2, ep=2)),
    "ep2-capacity-by-gate": cell(RANKED, own_axis(2, ep=2)),
    "ep2-tied": cell(TIED, own_axis(2, ep=2)),
    "ep2-sparse": cell(SPARSE, own_axis(2, ep=2)),
    "ep2-top-1": cell(TOP_1, own_axis(2, ep=2)),
    "ep4-idle": cell(BIASED, own_axis(4, ep=4)),
    "ep2-fsdp2": cell(MANY, own_axis(4, ep=2, fsdp=True)),
    "tp2-ep2": cell(MANY, own_axis(4, tp=2, ep=2)),
    "tp2-sp-ep2": cell(BIASED, own_axis(4, tp=2, ep=2, sp=True)),
    "tp2-sp-ep2-etp1": cell(SWIGLU, own_axis(4, tp=2, ep=2, etp=1, sp=True)),
    "tp2-ep2-etp1": cell(BIASED, own_axis(4, tp=2, ep=2, etp=1)),
    "tp2-sp-fsdp2": cell(MANY, own_axis(4, tp=2, sp=True, fsdp=True)),
    "tp2-sp-etp1-fsdp2": cell(MANY, own_axis(4, tp=2, etp=1, sp=True, fsdp=True)),
    "tp2-sp-fsdp2-latent": cell(LATENT, own_axis(4, tp=2, sp=True, fsdp=True)),
    "borrowed-ep2-idle": cell(BIASED, borrowed(2, ep=2)),
    "borrowed-ep2-top-1": cell(TOP_1, borrowed(2, ep=2)),
    "borrowed-etp2": cell(MANY, borrowed(2, etp=2)),
    "borrowed-etp2-biased": cell(BIASED_EVERYWHERE, borrowed(2, etp=2)),
    "tp2-sp-etp1-biased": cell(BIASED_EVERYWHERE, own_axis(2, tp=2, etp=1, sp=True)),
    "borrowed-ep2-fsdp": cell(MANY, borrowed(4, ep=2, fsdp=True)),
    "borrowed-ep4-fsdp": cell(BIASED, borrowed(4, ep=4, fsdp=True)),
    "borrowed-tp2-sp-ep2-etp1-fsdp": cell(BIASED, borrowed(4, tp=2, ep=2, etp=1, sp=True, fsdp=True)),
    "borrowed-tp2-sp-ep2-etp2-fsdp": cell(MANY, borrowed(4, tp=2, ep=2, etp=2, sp=True, fsdp=True)),
    "borrowed-tp2-sp-ep4-etp1-fsdp": cell(MUON, borrowed(4, tp=2, ep=4, etp=1, sp=True, fsdp=True)),
    "borrowed-tp2-ep2": cell(SWIGLU, borrowed(4, tp=2, ep=2)),
    "tp2-sp-ep2-fsdp2": cell(BIASED, own_axis(8, tp=2, ep=2, sp=True, fsdp=True)),
    "tp2-ep2-etp1-fsdp2": cell(MANY, own_axis(8, tp=2, ep=2, etp=1, fsdp=True)),
    "borrowed-hsdp2-tp2-sp-ep2": cell(BIASED, borrowed(8, tp=2, ep=2, sp=True, fsdp=True, replicas=2)),
    "borrowed-tp2-sp-ep4-etp1-fsdp4": cell(MANY, borrowed(8, tp=2, ep=4, etp=1, sp=True, fsdp=True)),
}  # fmt: skip


def last_step(
    stack: Training, recipe: Recipe, execution: Execution, number: int, *observe: Observed
) -> tuple[Step, Step]:
    """The last of `number` steps over packed batches, on one rank and under an execution, from the same weights."""
    execution = in_a_layout_of(stack, execution)
    session = Session(
        recipe=recipe,
        steps=number,
        execution=execution,
        batches=batches(number, "layout", rows=ROWS_OF_16 * (recipe.batch.total // 4)),
        weights=drawn_weights(stack.built(recipe, execution.mode).parameters),
        buffers=selection_biases(stack, recipe, IDLE, -4.0, mode=execution.mode),
        observe=frozenset(observe),
        at=frozenset({number}),
    )
    return on_one_rank_and_many(stack, session)[-1]


def figure_difference(one: Step, many: Step, bound: float = 1e-11) -> str:
    """In which losses and counts two steps differ."""
    words = label_difference(one, many) or loss_difference(one, many, bound=bound)
    return words or state_differences(one, many, "seen", tolerance=EXACT)


@contract("PAR-01a", asks=("built", "train"), cases=LAYOUTS, source="F01", tier="dist")
def every_gradient_is_that_of_one_rank(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """On every parallel layout, losses, counts and every gradient by name equal those of the run on one rank.

    Routers, norms under sequence parallel and shared mixer weights are copies of which each rank computes a part of the
    gradient. Gradients of experts may be divided by the size of the wrong mesh. The loss shows neither bug.
    """
    alone, many = last_step(stack, recipe, within(execution, mode), 1, "gradients")
    words = figure_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words


TWO_MESSAGES = replace(MANY, name="layouts-two-messages", moe=replace(MANY.moe or Moe(), expert_hidden=6144))
"""9.4 million elements of experts, 38 MB in float32: more than PyTorch's DDP, Megatron-Core (for few ranks) or the
reference put into one message."""
IN_FLOAT32 = {
    name: LAYOUTS[name]
    for name in (
        "tp2-sp", "fsdp2", "ep4-idle", "tp2-sp-ep2", "borrowed-tp2-sp-ep2-etp1-fsdp", "borrowed-ep2-groups",
    )
} | {
    "dp2-two-messages": cell(TWO_MESSAGES, own_axis(2)),
    "borrowed-cp2": cell(MANY, borrowed(2, cp=2)),
    "borrowed-cp2-fsdp-custom-mixers": cell(AHEAD, borrowed(2, cp=2, fsdp=True), "author_dp"),
}  # fmt: skip


@contract("PAR-01b", asks=("built", "train"), cases=IN_FLOAT32, source="F01", tier="dist")
def every_gradient_is_that_of_one_rank_in_float32(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """In float32, losses and every gradient on several ranks equal those of one rank to float32 accuracy.

    A stack may choose the dtype of its messages by the dtype of the tensors, so a run in float64 can hide a bug. Small
    gradients travel in one message; where they take two, the second begins where the first one ended.
    """
    alone, many = last_step(stack, recipe, within(execution, mode, precision="float32"), 1, "gradients")
    words = figure_difference(alone, many, 1e-5) or gradient_differences(alone, many, tolerance=FLOAT32_SCAN)
    assert not words, words


MOVED = {
    name: LAYOUTS[name]
    for name in (
        "tp2-sp-muon", "tp2-one-group", "tp4-few-groups", "dp2", "fsdp4-tied", "hsdp-2x2", "hsdp-2x2-muon", "ep2-idle",
        "tp2-sp-ep2", "tp2-ep2-etp1", "tp2-sp-fsdp2", "borrowed-ep4-fsdp",
        "borrowed-tp2-sp-ep2-etp1-fsdp", "borrowed-tp2-sp-ep4-etp1-fsdp", "tp2-sp-ep2-fsdp2",
    )
}  # fmt: skip


@contract("PAR-02a", asks=("built", "train"), cases=MOVED, source="F02", tier="dist")
def ranks_stay_replicas_of_one_rank(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """After three steps, weights, optimizer state and router biases equal those of the run on one rank, and replicas
    are bit-identical on all ranks.

    A correct first update can leave wrong state behind: a momentum of one shard, or a bias that each rank moved by its
    own counts. Copies that differ by rounding drift further apart, because each rank computes gradients of its own
    weights.
    """
    alone, many = last_step(stack, recipe, within(execution, mode), 3, "weights", "optimizer", "buffers")
    words = replica_differences({**many.weights, **many.optimizer, **many.buffers})
    assert not words, words
    words = state_differences(alone, many, "weights", "optimizer", "buffers")
    assert not words, words


@contract("PAR-03a", asks=("built", "train"), cases=MOVED, source="F03", tier="dist")
def the_norm_and_the_clip_are_those_of_one_rank(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """The gradient norm counts every parameter once, whatever meshes the parameters lie on, and one clip coefficient
    derived from it scales all gradients, as on one rank.

    A norm that counts replicas twice or leaves experts out clips a different run than the one on one rank.
    """
    clipped = replace(recipe, optim=replace(recipe.optim, clip=0.05))
    alone, many = last_step(stack, clipped, within(execution, mode), 1)
    words = clip_difference(alone, many)
    assert not words, words


WINDOWS = {
    "tp2-sp": (MANY, "nemo_native", own_axis(2, tp=2, sp=True), 2, 3),
    "tp2-one-group": (ONE_GROUP, "nemo_native", own_axis(2, tp=2), 2, 2),
    "dp2": (MANY, "nemo_native", own_axis(2), 2, 2),
    "fsdp2": (BIASED, "nemo_native", own_axis(2, fsdp=True), 2, 2),
    "tp2-fsdp-of-one": (MANY, "nemo_native", own_axis(2, tp=2, fsdp=True), 2, 3),  # asked to shard over one rank
    "borrowed-ep2": (BIASED, "nemo_native", borrowed(2, ep=2), 2, 2),
    "tp2-sp-fsdp2": (AHEAD, "nemo_native", own_axis(4, tp=2, sp=True, fsdp=True), 4, 2),
    "hsdp-2x2": (replace(BIASED, batch=replace(MANY.batch, total=8)), "nemo_native",
                 own_axis(4, fsdp=True, replicas=2), 4, 2),
    "borrowed-hsdp2-ep2-fsdp4": (replace(BIASED, batch=replace(MANY.batch, total=16)), "nemo_native",
                                 borrowed(8, ep=2, fsdp=True, replicas=2), 8, 2),
}  # fmt: skip


@contract("PAR-05d", asks=("built", "train"), cases=WINDOWS, source="F19", tier="dist")
def a_window_on_several_ranks_is_the_batch(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int, microbatches: int
) -> None:
    """Gradient accumulation on several ranks, over microbatches with unequal numbers of labels, gives the losses and
    gradients of the whole batch at once on one rank.

    Averaging per-microbatch means over-weights tokens in microbatches with few labels. A gradient of copies, of the one
    KV head that two ranks share, is a part until it is summed; summed after each microbatch, it counts the first twice.
    Where a group has one rank a reduction gives back what it was given: whoever adds the result to what it has doubles
    it in each microbatch.
    """
    alone, many = last_step(stack, recipe, within(execution, mode, microbatches=microbatches), 1, "gradients")
    words = figure_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words
