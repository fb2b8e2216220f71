"""A step through pipeline stages equals the step on one rank.

The oracle is the same stack on one rank, with the same whole weights and the whole batch at once. Experts stand on
every stage, and every loss counts on the stage where it arises. Documents have unequal lengths and unequal numbers of
labels, so that a microbatch paired with another one's labels, documents or gradients shows.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.pipeline_run import (
    AHEAD,
    BESIDE_DP,
    BESIDE_EP,
    BESIDE_TP,
    HALVES,
    IN_FOUR,
    IN_TWO,
    INTERLEAVED,
    LOSS,
    QUARTERS,
    STAGED,
    TIED,
    TIED_AHEAD_QUARTERS,
    Cell,
    batches,
    cell,
    one_rank_and_many,
)
from contracts.law._support.recipes import SMALL_MLA
from contracts.law._support.step_comparison import gradient_differences, label_difference, loss_difference
from contracts.law._support.training_run import batch
from contracts.spec import Degrees, Dsa, Execution, Mhc, ParallelSsm, Recipe, Tokens, Training

EMBEDDING = "embedding.weight"
SPARSE = replace(
    HALVES, name="staged-dsa", pattern="AE|MA", depth=4, mla=SMALL_MLA.mla,
    dsa=Dsa(a_ranks=(1,), index_heads=5, index_head_dim=8, top_k=5),
)  # fmt: skip
"""The second attention layer of the model is sparse, and the first of the second stage."""
EIGHT = replace(STAGED.batch, total=8)
"""More sequences than are in flight at once between two stages, in either schedule."""
FLOWS: dict[str, Cell] = {
    "two-stages": cell(HALVES, IN_TWO),
    "no-more-microbatches-than-stages": cell(HALVES, replace(IN_TWO, microbatches=2)),
    "eight-microbatches": cell(replace(HALVES, batch=EIGHT), replace(IN_TWO, microbatches=8)),
    "cut-evenly": cell(replace(STAGED, depth=6), IN_TWO),
    "streams": cell(replace(HALVES, pattern="AE|MA", depth=4, mhc=Mhc(streams=3)), IN_TWO),  # A reads them on both
    "sparse": cell(SPARSE, IN_TWO),
    "side-by-side": cell(replace(HALVES, pattern="AE|A", depth=3, parallel_ssm=ParallelSsm(ssm_scale=1.5)), IN_TWO),
    "prediction-heads": cell(AHEAD, IN_TWO),
    "tied": cell(TIED, IN_TWO),
    "recomputed": cell(HALVES, replace(IN_TWO, recompute=True)),
    "interleaved": cell(QUARTERS, INTERLEAVED),
    "interleaved-eight-microbatches": cell(replace(QUARTERS, batch=EIGHT), replace(INTERLEAVED, microbatches=8)),
    "interleaved-cut-evenly": cell(replace(STAGED, depth=8), replace(INTERLEAVED, microbatches=2)),
    "three-stages": cell(replace(STAGED, depth=6), replace(IN_TWO, world=3, degrees=Degrees(pp=3))),
    "four-stages": cell(QUARTERS, IN_FOUR),
    "four-stages-tied-and-ahead": cell(TIED_AHEAD_QUARTERS, IN_FOUR),
    "beside-dp": cell(HALVES, BESIDE_DP),
    "beside-shards": cell(TIED, replace(BESIDE_DP, fsdp=True)),
    "beside-tp-sp": cell(HALVES, BESIDE_TP),
    "beside-ep": cell(HALVES, BESIDE_EP),
}


@contract("PAR-08a", asks=("built", "train"), cases=FLOWS, source="bringup F20; F19", tier="dist")
def a_step_in_stages_is_that_of_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under pipeline parallel, every loss, the label count and every gradient by name equal those of one rank: for 1F1B
    and interleaved schedules, for equal stages and written-out ones, and together with every other axis.

    The loss falls with each of these bugs: a mean over microbatch means, an auxiliary loss that only the last stage
    adds, a microbatch that meets the labels of another, a layer that is run as its number within the stage says.
    """
    for one, many in one_rank_and_many(stack, recipe, execution, batches(1, recipe), "gradients"):
        words = label_difference(one, many) or loss_difference(one, many, bound=LOSS)
        words = words or gradient_differences(one, many)
        assert not words, words


LENGTHS = (16, 9, 20, 9)
CHANGED: dict[str, Cell] = {
    "1f1b": cell(HALVES, IN_TWO),
    "interleaved": cell(QUARTERS, INTERLEAVED),
}


@contract("PAR-08c", asks=("built", "train"), cases=CHANGED, source="F19", tier="dist")
def the_length_may_change_from_step_to_step(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under pipeline parallel, steps over sequences of 16, 9, 20 and 9 tokens equal those of one rank.

    A receive buffer that keeps the first length silently leaves the end of the previous step behind a shorter message;
    a longer message kills the receiver.
    """
    given = tuple(_of_length(length) for length in LENGTHS)
    for one, many in one_rank_and_many(stack, recipe, execution, given, "gradients"):
        words = loss_difference(one, many, bound=LOSS) or gradient_differences(one, many)
        assert not words, words


def _of_length(length: int) -> Tokens:
    rows = (((length,), 3), ((2, length - 2), 0), ((1, 5, length - 6), 2), ((length - 1, 1), 0))
    return batch(f"length {length}", STAGED.vocab, rows)
