"""The router bias of a transformer with experts, on several ranks and on one."""

from __future__ import annotations

from contracts import instruments
from contracts.checks._support.transformer_layouts import some
from contracts.checks._support.transformers import (
    apart,
    both,
    told_counts,
)
from contracts.contract import contract
from contracts.spec.recipe import Recipe
from contracts.spec.training import Execution, Training

BIASED = some("dp2", "hsdp-2x2", "tp2-sp", "ep2", "borrowed-ep2", "borrowed-ep2-fsdp", "borrowed-tp2-sp-ep4-etp1-fsdp")


@contract("MOE-06e", asks=("built", "train"), cases=BIASED, source="F18; arXiv 2408.15664", tier="dist")
def a_bias_of_a_transformer_moves_by_all_counts(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Over three steps, the router bias of a transformer on several ranks matches one rank in every layer; where the
    stack reports counts, they count each assignment of the whole batch once.
    """
    assert recipe.moe is not None
    for alone, many in both(stack, recipe, execution, 3, "buffers"):
        for name, counts in instruments.numerics.tensors(told_counts(many)).items():
            found, want = int(counts.sum()), 4 * recipe.seq_length * recipe.moe.top_k
            assert found == want, f"{name} has {found} assignments, expected {want} (step {many.number})"
        words = apart(alone, many, "the buffer", many.buffers, alone.buffers)
        assert not words, words
