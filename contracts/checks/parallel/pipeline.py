"""A step through pipeline stages equals the step on one rank.

The oracle is the same stack on one rank, with the same whole weights and the whole batch at once. Experts stand on
every stage, and every loss counts on the stage where it arises. Documents have unequal lengths and unequal numbers of
labels, so that a microbatch paired with another one's labels, documents or gradients shows.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.checks._support.pipeline_run import (  # fmt: skip
    AHEAD,
    BESIDE_DP,
    BESIDE_EP,
    BESIDE_TP,
    HALVES,
    IN_FOUR,
    IN_TWO,
    INTERLEAVED,
    QUARTERS,
    STAGED,
    TIED,
    TIED_AHEAD_QUARTERS,
    Flow,
    both,
    flow,
    given,
    gradients_unlike,
    losses_apart,
)
from contracts.checks._support.training_run import batch
from contracts.contract import contract
from contracts.spec.recipe import Mhc, Recipe
from contracts.spec.training import Execution, Tokens, Training

EMBEDDING = "embedding.weight"
FLOWS: dict[str, Flow] = {
    "two-stages": flow(HALVES, IN_TWO),
    "no-more-microbatches-than-stages": flow(HALVES, replace(IN_TWO, microbatches=2)),
    "cut-evenly": flow(replace(STAGED, depth=6), IN_TWO),
    "streams": flow(replace(HALVES, pattern="AE|MA", depth=4, mhc=Mhc(streams=3)), IN_TWO),  # A reads them on both
    "prediction-heads": flow(AHEAD, IN_TWO),
    "tied": flow(TIED, IN_TWO),
    "recomputed": flow(HALVES, replace(IN_TWO, recompute=True)),
    "interleaved": flow(QUARTERS, INTERLEAVED),
    "interleaved-cut-evenly": flow(replace(STAGED, depth=8), replace(INTERLEAVED, microbatches=2)),
    "four-stages": flow(QUARTERS, IN_FOUR),
    "four-stages-tied-and-ahead": flow(TIED_AHEAD_QUARTERS, IN_FOUR),
    "beside-dp": flow(HALVES, BESIDE_DP),
    "beside-shards": flow(TIED, replace(BESIDE_DP, fsdp=True)),
    "beside-tp-sp": flow(HALVES, BESIDE_TP),
    "beside-ep": flow(HALVES, BESIDE_EP),
}


@contract("PAR-08a", asks=("built", "train"), cases=FLOWS, source="bringup F20; F19", tier="dist")
def a_step_in_stages_is_that_of_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under pipeline parallel, every loss, the label count and every gradient by name equal those of one rank: for 1F1B
    and interleaved schedules, for equal stages and written-out ones, and beside every other axis.

    The loss falls with each of these bugs: a mean over microbatch means, an auxiliary loss that only the last stage
    adds, a microbatch that meets the labels of another.
    """
    one, many = both(stack, recipe, execution, given(1), "gradients")
    for want, got in zip(one.steps, many.steps, strict=True):
        assert got.tokens == want.tokens, f"{got.tokens} labels count in {world} ranks, {want.tokens} on one"
        words = losses_apart(got, want) or gradients_unlike(got, want)
        assert not words, words


LENGTHS = (16, 9, 20, 9)
CHANGED: dict[str, Flow] = {
    "1f1b": flow(HALVES, IN_TWO),
    "interleaved": flow(QUARTERS, INTERLEAVED),
}


@contract("PAR-08c", asks=("built", "train"), cases=CHANGED, source="F19", tier="dist")
def the_length_may_change_from_step_to_step(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under pipeline parallel, steps over sequences of 16, 9, 20 and 9 tokens equal those of one rank.

    A receive buffer that keeps the first length silently leaves the end of the previous step behind a shorter message;
    a longer message kills the receiver.
    """
    batches = tuple(_of_length(length) for length in LENGTHS)
    one, many = both(stack, recipe, execution, batches, "gradients")
    for want, got in zip(one.steps, many.steps, strict=True):
        words = losses_apart(got, want) or gradients_unlike(got, want)
        assert not words, words


def _of_length(length: int) -> Tokens:
    rows = (((length,), 3), ((2, length - 2), 0), ((1, 5, length - 6), 2), ((length - 1, 1), 0))
    return batch(f"length {length}", STAGED.vocab, rows)
