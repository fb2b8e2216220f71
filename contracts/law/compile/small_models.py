"""A step of a transformer with experts, compiled block by block on several ranks."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import graphs
from contracts.law._support.small_models import Cell, cell, loss_difference, one_rank_and_many
from contracts.law._support.step_comparison import gradient_differences
from contracts.law._support.transformer_layouts import G
from contracts.spec import FLOAT32_TRANSFORMER, Execution, Moe, Recipe, Training

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
    graphs.reset_compiler()  # what is cached names groups of worlds that are no more
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, 1, "gradients")
    words = loss_difference(alone, many) or gradient_differences(
        alone, many, what="compiled, the gradient of", tolerance=FLOAT32_TRANSFORMER
    )
    assert not words, words
