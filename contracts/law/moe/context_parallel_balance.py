"""Expert balance under context parallel, where the tokens of a row lie on several ranks."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.context_parallel import HALVES, QUARTERS
from contracts.law._support.multi_rank_run import BIASED, SPREAD, borrowed, one_rank_and_many, with_rungs
from contracts.law._support.step_comparison import bias_differences, gradient_differences, loss_difference
from contracts.law._support.training_run import Rows, batch
from contracts.spec import Execution, Moe, Recipe, Training

LOUD = replace(SPREAD, name="context-loud", moe=replace(SPREAD.moe or Moe(), aux_loss=30.0, z_loss=5.0))


LOSSES = ("experts", "balance-loss", "z-loss")
BALANCED: dict[str, tuple[Recipe, Execution, Rows, int]] = {
    "cp2": (LOUD, borrowed(2, cp=2), HALVES, 2),
    "cp2-ep2": (LOUD, replace(borrowed(2, cp=2, ep=2), microbatches=2), HALVES, 2),
    "cp2-fsdp": (LOUD, borrowed(2, cp=2, fsdp=True), HALVES, 2),
    "cp4": (LOUD, borrowed(4, cp=4), QUARTERS, 4),
    "cp2-tp2": (LOUD, borrowed(4, cp=2, tp=2), HALVES, 4),
    "cp2-tp2-sp-ep2-etp1": (LOUD, borrowed(4, cp=2, tp=2, ep=2, etp=1, sp=True), HALVES, 4),
}


@contract("MOE-05g", asks=("built", "train"), cases=with_rungs(BALANCED, *LOSSES), needs=LOSSES, sheds=("packed",),
          source="F01; AUX-01; AUX-15", tier="dist",
          conventions=("balance-over",))  # fmt: skip
def balance_is_of_the_whole_row(stack: Training, recipe: Recipe, execution: Execution, rows: Rows, world: int) -> None:
    """Under context parallel, the balance loss is over whole sequences and the z loss over all tokens, and the
    gradients that they give the router match one rank.

    These losses outweigh the task loss here. f · P over one rank's part of a row asks for balance within each part,
    which no layout without context parallel asks for.
    """
    ((alone, many),) = one_rank_and_many(
        stack, recipe, execution, (batch("context balance", LOUD.vocab, rows, recipe=recipe),), "gradients"
    )
    words = loss_difference(alone, many, "aux", "z", "total") or gradient_differences(alone, many, "router")
    assert not words, words


CHOOSING = ("experts", "sigmoid", "selection-bias")
BY_ALL: dict[str, tuple[Recipe, Execution, int]] = {
    "cp2": (BIASED, replace(borrowed(2, cp=2), microbatches=2), 2),
    "cp2-ep2": (BIASED, borrowed(2, cp=2, ep=2), 2),
    "cp2-fsdp": (BIASED, borrowed(2, cp=2, fsdp=True), 2),
    "cp2-hsdp": (BIASED, borrowed(4, cp=2, fsdp=True, replicas=2), 4),
}


ASSIGNMENTS = 4 * 16 * 3
"""4 sequences of 16 tokens, each with 3 experts."""


@contract("MOE-06g", asks=("built", "train"), cases=with_rungs(BY_ALL, *CHOOSING), needs=CHOOSING, sheds=("packed",),
          source="F18; arXiv 2408.15664", tier="dist")  # fmt: skip
def a_bias_moves_by_the_counts_of_whole_rows(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under context parallel, a router's selection bias moves by the assignments of every token of a row, each counted
    once, and equally on all ranks of the row.
    """
    given = tuple(batch(f"context bias {step}", BIASED.vocab, HALVES, recipe=recipe) for step in range(3))
    for alone, many in one_rank_and_many(stack, recipe, execution, given, "buffers"):
        words = bias_differences(alone, many, ASSIGNMENTS)
        assert not words, words
