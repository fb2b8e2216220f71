"""Experts on several ranks: where they lie changes no output, no gradient, no balance, no bias.

The oracle is the same stack on one rank. Experts and routers weigh more than the rest: a shared expert and a residual
stream hide dead experts from every loss.
"""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.multi_rank_run import (
    BIASED,
    SPREAD,
    batches,
    biases_apart,
    borrowed,
    both,
    gradients_apart,
    losses_apart,
    own,
)
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.spec.array import Arrays
from contracts.spec.recipe import Moe, Recipe
from contracts.spec.training import Execution, Tokens, Training

DEGREES: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "ep2": own(2, ep=2),
        "borrowed-ep2": borrowed(2, ep=2),
        "ep4": own(4, ep=4),
        "borrowed-ep4": borrowed(4, ep=4),
        "ep2-fsdp2": own(4, ep=2, fsdp=True),
    }.items()
}
CUT: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "tp2-etp1": own(2, tp=2, etp=1),
        "tp2-sp-etp1": own(2, tp=2, etp=1, sp=True),
        "borrowed-tp2-sp-ep2-etp1": borrowed(2, tp=2, ep=2, etp=1, sp=True),
        "tp2-ep2": own(4, tp=2, ep=2),
        "borrowed-tp2-sp-ep2-etp2-fsdp": borrowed(4, tp=2, ep=2, etp=2, sp=True, fsdp=True),
    }.items()
}
ROUTED = (".experts.", ".router.", ".shared.")


@contract("MOE-07a", asks=("built", "train"), cases=DEGREES, source="bringup; F01", tier="dist")
def the_expert_degree_changes_no_number(stack: Training, execution: Execution, world: int) -> None:
    """Losses and gradients of router, experts and shared expert do not depend on how many ranks the experts lie on.

    In both layouts: ranks of the expert group share a batch, or each brings tokens of its own. A router that learns
    from one rank's gates, or experts that learn EP times as fast, leave the loss of the step as it is.
    """
    _alike(stack, SPREAD, execution)


@contract("MOE-07b", asks=("built", "train"), cases=CUT, source="bringup; F01", tier="dist")
def the_tensor_degree_of_experts_changes_no_number(stack: Training, execution: Execution, world: int) -> None:
    """Nor on whether an expert is whole on a rank while the mixers are cut (expert TP 1), or cut itself."""
    _alike(stack, SPREAD, execution)


def _alike(stack: Training, recipe: Recipe, execution: Execution, buffers: Arrays | None = None) -> None:
    ((alone, many),) = both(stack, recipe, execution, batches(1), "gradients", buffers=buffers)
    words = losses_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"
    for parts in (ROUTED, ("",)):
        words = gradients_apart(alone, many, *parts)
        assert not words, f"{words} (rank {here().rank})"


CROWDED = {name: DEGREES[name] for name in ("ep2", "borrowed-ep2", "ep4", "borrowed-ep4")}
CHOSEN = ((9, 11, 14), (0, 1, 2, 3))
"""The experts that take all tokens, in the layer that routes first and in the one behind it: one rank has them all,
and in the second case one of them is idle now and then."""


@contract("MOE-02f", asks=("built", "train"), cases=CROWDED, source="F11 F12 F21", tier="dist")
def every_token_comes_back_where_ranks_are_idle(stack: Training, execution: Execution, world: int) -> None:
    """Rows find their experts and their way back where one rank has all the work and the others none.

    Every token of the batch is another one, so the embedding's gradient has a row for each: whose row came back at
    another's place is seen there.
    """
    recipe = BIASED
    given = (_labelled(),)
    ((alone, many),) = both(stack, recipe, execution, given, "gradients", buffers=_crowding(stack, recipe))
    words = losses_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"
    for parts in (("embedding",), ("",)):
        words = gradients_apart(alone, many, *parts)
        assert not words, f"{words} (rank {here().rank})"


def _labelled() -> Tokens:
    """A batch in which no token comes twice: 64 of a vocabulary of 67, in no order."""
    import torch

    (given,) = batches(1)
    tokens_BT = (5 + 7 * torch.arange(64)) % 67
    return replace(given, tokens=instruments.numerics.array(tokens_BT.view(4, 16)))


def _crowding(stack: Training, recipe: Recipe) -> Arrays:
    """Selection biases that send all tokens to a few experts."""
    import torch

    found = {}
    for index, (name, shape) in enumerate(sorted(stack.built(recipe, "nemo_native").buffers.items())):
        bias_E = torch.zeros(shape, dtype=torch.float64)
        bias_E[list(CHOSEN[index % 2])] = 4.0  # sigmoids lie in 0 … 1
        found[name] = instruments.numerics.array(bias_E)
    return found


LOUD = replace(SPREAD, name="spread-loud", moe=replace(SPREAD.moe or Moe(), aux_loss=30.0, z_loss=5.0))
BALANCED: dict[str, tuple[Execution, int, int]] = {
    name: (execution, execution.world, microbatches)
    for name, execution, microbatches in (
        ("tp2", own(2, tp=2), 1),
        ("tp2-sp", own(2, tp=2, sp=True), 1),
        ("tp2-sp-etp1", own(2, tp=2, etp=1, sp=True), 2),
        ("ep2", own(2, ep=2), 3),
        ("dp2", own(2), 2),
        ("tp2-sp-ep2", own(4, tp=2, ep=2, sp=True), 2),
        ("borrowed-tp2-sp-ep4-etp1-fsdp", borrowed(4, tp=2, ep=4, etp=1, sp=True, fsdp=True), 1),
    )
}


@contract("MOE-05f", asks=("built", "train"), cases=BALANCED, source="F01; AUX-01", tier="dist")
def balance_does_not_depend_on_the_layout(stack: Training, execution: Execution, world: int, microbatches: int) -> None:
    """The balance loss and the z loss are those of one rank under every axis and in microbatches, and so is what they
    do to the router.

    They outweigh the task here. f and P are of a whole sequence, whoever has its tokens; a gradient that is multiplied
    by TP, or lost, leaves the losses that are told as they should be.
    """
    ((alone, many),) = both(stack, LOUD, replace(execution, microbatches=microbatches), batches(1), "gradients")
    words = losses_apart(alone, many, "aux", "z", "total")
    assert not words, f"{words} (rank {here().rank})"
    words = gradients_apart(alone, many, "router")
    assert not words, f"{words} (rank {here().rank})"


MOVED: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "dp2": replace(own(2), microbatches=2),
        "fsdp2": own(2, fsdp=True),
        "ep2": own(2, ep=2),
        "tp2-sp-etp1": own(2, tp=2, etp=1, sp=True),
        "borrowed-ep2": borrowed(2, ep=2),
        "tp2-sp-ep2": own(4, tp=2, ep=2, sp=True),
        "hsdp-2x2": own(4, fsdp=True, replicas=2),
    }.items()
}
ASSIGNMENTS = 4 * 16 * 3
"""4 sequences of 16 tokens, each with 3 experts."""


@contract("MOE-06c", asks=("built", "train"), cases=MOVED, source="F18; arXiv 2408.15664", tier="dist")
def a_bias_moves_by_the_counts_of_all_ranks(stack: Training, execution: Execution, world: int) -> None:
    """A router's bias moves once a step, in every layer, by the assignments of the whole batch, each counted once.

    A rank that counts its own tokens drifts from its replicas; ranks that routed the same tokens and are all counted
    change no sign while nothing else is added to it.
    """
    for alone, many in both(stack, BIASED, execution, batches(3), "buffers"):
        words = biases_apart(alone, many, ASSIGNMENTS)
        assert not words, f"{words} (step {alone.number}, rank {here().rank})"
