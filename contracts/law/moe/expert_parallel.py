"""Expert parallel: where experts lie changes no output, no gradient, no balance loss, no bias.

The oracle is the same stack on one rank. Experts and routers weigh more than the rest of the model here: a shared
expert and a residual stream would hide dead experts from every loss.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import training_run
from contracts.law._support.late import torch
from contracts.law._support.multi_rank_run import (
    BIASED,
    SPREAD,
    batches,
    borrowed,
    one_rank_and_many,
    own_axis,
    with_rungs,
)
from contracts.law._support.step_comparison import bias_differences, gradient_differences, loss_difference
from contracts.law._support.training_run import Rows, selection_biases
from contracts.spec import Arrays, Execution, Moe, Recipe, Tokens, Training

DEGREES: dict[str, tuple[Recipe, Execution, int]] = {
    name: (SPREAD, execution, execution.world)
    for name, execution in {
        "ep2": own_axis(2, ep=2),
        "borrowed-ep2": borrowed(2, ep=2),
        "ep4": own_axis(4, ep=4),
        "borrowed-ep4": borrowed(4, ep=4),
        "ep2-fsdp2": own_axis(4, ep=2, fsdp=True),
    }.items()
}
CUT: dict[str, tuple[Recipe, Execution, int]] = {
    name: (SPREAD, execution, execution.world)
    for name, execution in {
        "tp2-etp1": own_axis(2, tp=2, etp=1),
        "tp2-sp-etp1": own_axis(2, tp=2, etp=1, sp=True),
        "borrowed-tp2-sp-ep2-etp1": borrowed(2, tp=2, ep=2, etp=1, sp=True),
        "tp2-ep2": own_axis(4, tp=2, ep=2),
        "borrowed-tp2-sp-ep2-etp2-fsdp": borrowed(4, tp=2, ep=2, etp=2, sp=True, fsdp=True),
    }.items()
}
ODD_ROWS: Rows = (((15,), 11), ((4, 11), 0), ((1, 5, 9), 6))
"""45 tokens, which no two ranks share evenly."""
UNEVEN: dict[str, tuple[Recipe, Execution, Rows, int]] = {
    name: (SPREAD, execution, rows, execution.world)
    for name, execution, rows in (
        ("sharers-ep2", own_axis(2, ep=2), ODD_ROWS),
        ("sharers-tp2-etp1", own_axis(2, tp=2, etp=1), ODD_ROWS),
        ("senders-borrowed-ep2", borrowed(2, ep=2), ODD_ROWS),
        ("a-token-each", own_axis(2, ep=2), (((3,), 0),)),
    )
}
SHARED = {"": ("experts",), "senders-borrowed-ep2": ("experts", "uneven-microbatches")}
ROUTED = (".experts.", ".router.", ".shared.")


@contract(
    "MOE-07a",
    asks=("built", "train"),
    cases=with_rungs(DEGREES, "experts"),
    needs=("experts",),
    sheds=("packed",),
    float32=True,
    source="bringup; F01",
    tier="dist",
)
def the_expert_degree_changes_no_number(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Losses, and gradients of router, experts and shared expert, do not depend on the expert-parallel size.

    This holds in both layouts, whether the ranks of an expert group share a batch or each brings its own tokens. A
    router that learns from one rank's gates, or experts that learn EP times as fast, leave the loss of the step
    unchanged.
    """
    _alike(stack, recipe, execution)


@contract(
    "MOE-07b",
    asks=("built", "train"),
    cases=with_rungs(CUT, "experts"),
    needs=("experts",),
    sheds=("packed",),
    float32=True,
    source="bringup; F01",
    tier="dist",
)
def the_tensor_degree_of_experts_changes_no_number(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Losses and gradients do not depend on the tensor-parallel size of experts: whether TP ranks, which shard the
    mixers, each hold whole experts (expert TP 1) or shard the experts too.
    """
    _alike(stack, recipe, execution)


@contract("MOE-07c", asks=("built", "train"), cases=with_rungs(UNEVEN, "experts"), needs=SHARED, sheds=("packed",),
          float32=True, source="Automodel#1365; Megatron-Bridge#5270; F21",
          tier="dist")  # fmt: skip
def tokens_that_do_not_divide_change_no_number(
    stack: Training, recipe: Recipe, execution: Execution, rows: Rows, world: int
) -> None:
    """Losses and gradients equal one rank's even if the number of tokens does not divide by the ranks of an expert
    group, or the ranks bring unequal numbers of tokens.

    A gather that takes all shards to be as long as its own, and an exchange of fixed size, lose the last tokens or read
    what lies after them. With equal counts both are right.
    """
    given = training_run.batches(1, "uneven", SPREAD.vocab, rows, recipe=recipe)
    _alike(stack, recipe, execution, given=given)


def _alike(
    stack: Training, recipe: Recipe, execution: Execution, buffers: Arrays | None = None,
    given: tuple[Tokens, ...] = (),
) -> None:  # fmt: skip
    ((alone, many),) = one_rank_and_many(
        stack, recipe, execution, given or batches(1, recipe), "gradients", buffers=buffers
    )
    words = loss_difference(alone, many) or gradient_differences(alone, many, *ROUTED)
    words = words or gradient_differences(alone, many)
    assert not words, words


CROWDED = {name: (BIASED, *DEGREES[name][1:]) for name in ("ep2", "borrowed-ep2", "ep4", "borrowed-ep4")}
CHOOSING = ("experts", "sigmoid", "selection-bias")
CHOSEN = ((9, 11, 14), (0, 1, 2, 3))
"""The experts that take all tokens, in the first routed layer and in the second: one rank holds all of them. In the
second layer one of its experts is sometimes idle."""


@contract(
    "MOE-02f",
    asks=("built", "train"),
    cases=with_rungs(CROWDED, *CHOOSING),
    needs=CHOOSING,
    sheds=("packed",),
    float32=True,
    source="F11 F12 F21",
    tier="dist",
)
def every_token_comes_back_where_ranks_are_idle(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Every row reaches its experts and returns to its place even if one rank has all the work and the others are idle.

    No token occurs twice in the batch, so the embedding's gradient has one row for each, and shows a row that returned
    to another token's place.
    """
    given = (_labelled(recipe),)
    ((alone, many),) = one_rank_and_many(
        stack, recipe, execution, given, "gradients", buffers=selection_biases(stack, recipe, CHOSEN, 4.0)
    )
    words = loss_difference(alone, many) or gradient_differences(alone, many, "embedding")
    words = words or gradient_differences(alone, many)
    assert not words, words


def _labelled(recipe: Recipe) -> Tokens:
    """A batch in which no token occurs twice: 64 of a vocabulary of 67, shuffled."""
    (given,) = batches(1, recipe)
    tokens_BT = (5 + 7 * torch.arange(64)) % 67
    return replace(given, tokens=numerics.array(tokens_BT.view(4, 16)))


LOSSES = ("experts", "balance-loss", "z-loss")
LOUD = replace(SPREAD, name="spread-loud", moe=replace(SPREAD.moe or Moe(), aux_loss=30.0, z_loss=5.0))
BALANCED: dict[str, tuple[Recipe, Execution, int, int]] = {
    name: (LOUD, execution, execution.world, microbatches)
    for name, execution, microbatches in (
        ("tp2", own_axis(2, tp=2), 1),
        ("tp2-sp", own_axis(2, tp=2, sp=True), 1),
        ("tp2-sp-etp1", own_axis(2, tp=2, etp=1, sp=True), 2),
        ("ep2", own_axis(2, ep=2), 3),
        ("dp2", own_axis(2), 2),
        ("tp2-sp-ep2", own_axis(4, tp=2, ep=2, sp=True), 2),
        ("borrowed-tp2-sp-ep4-etp1-fsdp", borrowed(4, tp=2, ep=4, etp=1, sp=True, fsdp=True), 1),
    )
}


@contract("MOE-05f", asks=("built", "train"), cases=with_rungs(BALANCED, *LOSSES), needs=LOSSES, sheds=("packed",),
          source="F01; AUX-01", conventions=("balance-over",),
          tier="dist")  # fmt: skip
def balance_does_not_depend_on_the_layout(
    stack: Training, recipe: Recipe, execution: Execution, world: int, microbatches: int
) -> None:
    """The balance loss, the z loss and the gradients that they give the router match one rank, under every parallel
    axis and with microbatches.

    These losses outweigh the task loss here. f and P are over a whole sequence, whichever rank holds its tokens. A
    gradient that is lost, or multiplied by TP, leaves the reported losses right.
    """
    ((alone, many),) = one_rank_and_many(
        stack, recipe, replace(execution, microbatches=microbatches), batches(1, recipe), "gradients"
    )
    words = loss_difference(alone, many, "aux", "z", "total") or gradient_differences(alone, many, "router")
    assert not words, words


MOVED: dict[str, tuple[Recipe, Execution, int]] = {
    name: (BIASED, execution, execution.world)
    for name, execution in {
        "dp2": replace(own_axis(2), microbatches=2),
        "fsdp2": own_axis(2, fsdp=True),
        "ep2": own_axis(2, ep=2),
        "tp2-sp-etp1": own_axis(2, tp=2, etp=1, sp=True),
        "borrowed-ep2": borrowed(2, ep=2),
        "tp2-sp-ep2": own_axis(4, tp=2, ep=2, sp=True),
        "hsdp-2x2": own_axis(4, fsdp=True, replicas=2),
    }.items()
}
ASSIGNMENTS = 4 * 16 * 3
"""4 sequences of 16 tokens, each with 3 experts."""


@contract(
    "MOE-06c",
    asks=("built", "train"),
    cases=with_rungs(MOVED, *CHOOSING),
    needs=CHOOSING,
    sheds=("packed",),
    float32=True,
    source="F18; arXiv 2408.15664",
    tier="dist",
)
def a_bias_moves_by_the_counts_of_all_ranks(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """A router's selection bias moves once a step, in every layer, by the assignments of the whole batch, each counted
    once.

    A rank that counts only its own tokens drifts from its replicas. Ranks that routed the same tokens and are all
    counted multiply the counts, which changes no sign until other counts are added.
    """
    for alone, many in one_rank_and_many(stack, recipe, execution, batches(3, recipe), "buffers"):
        words = bias_differences(alone, many, ASSIGNMENTS)
        assert not words, words
