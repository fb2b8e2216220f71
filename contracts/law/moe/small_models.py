"""The router bias of a transformer with experts, on several ranks and on one."""

from __future__ import annotations

from contracts.contract import contract
from contracts.law._support.small_models import one_rank_and_many
from contracts.law._support.step_comparison import bias_differences
from contracts.law._support.transformer_layouts import cells_named
from contracts.spec.recipe import Recipe
from contracts.spec.tolerance import FLOAT32_TRANSFORMER
from contracts.spec.training import Execution, Training

BIASED = cells_named(
    "dp2", "hsdp-2x2", "tp2-sp", "ep2", "borrowed-ep2", "borrowed-ep2-fsdp", "borrowed-tp2-sp-ep4-etp1-fsdp"
)


@contract("MOE-06e", asks=("built", "train"), cases=BIASED, source="F18; arXiv 2408.15664", tier="dist")
def a_bias_of_a_transformer_moves_by_all_counts(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Over three steps, the router bias of a transformer on several ranks matches one rank in every layer; where the
    stack reports counts, they count each assignment of the whole batch once.
    """
    assert recipe.moe is not None
    for alone, many in one_rank_and_many(stack, recipe, execution, 3, "buffers"):
        assignments = 4 * recipe.seq_length * recipe.moe.top_k
        words = bias_differences(alone, many, assignments, FLOAT32_TRANSFORMER)
        assert not words, words
