"""A step of a transformer with experts, compiled block by block on several ranks."""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.transformer_layouts import G
from contracts.checks._support.transformers import (
    Cell,
    apart,
    both,
    cell,
    figures_apart,
)
from contracts.contract import contract
from contracts.spec.recipe import Moe, Recipe
from contracts.spec.training import Execution, Training

FEW = Moe(experts=4, top_k=2, expert_hidden=24, shared_hidden=0, aux_loss=0.0)


COMPILED: dict[str, Cell] = {
    "fsdp2": cell(replace(G, moe=FEW), 2, fsdp=True, compiled=True),
    "borrowed-tp2-sp-ep2-etp1": cell(replace(G, moe=FEW), 2, tp=2, ep=2, etp=1, sp=True, compiled=True),
}


@contract("COMP-07c", asks=("built", "train"), cases=COMPILED, source="bringup", tier="dist", slow=True)
def a_compiled_transformer_is_the_eager_one(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Compiled block by block, a transformer's step on several ranks has the loss and the gradients of the eager step
    on one rank.
    """
    instruments.graphs.forget()  # what is cached names groups of worlds that are no more
    ((alone, many),) = both(stack, recipe, execution, 1, "gradients")
    words = figures_apart(alone, many) or apart(
        alone, many, "compiled, the gradient of", many.gradients, alone.gradients
    )
    assert not words, words
