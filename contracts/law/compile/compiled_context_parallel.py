"""A state that passes from rank to rank, compiled."""

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.instruments.ranks import gathered
from contracts.law._support.context_parallel import RECURS, SCANS, last_label
from contracts.law._support.multi_rank_run import borrowed, one_rank_and_many
from contracts.law._support.step_comparison import gradient_differences, loss_difference
from contracts.law._support.training_run import drawn_weights
from contracts.spec import Execution, Recipe, Training

COMPILED: dict[str, tuple[Recipe, Execution, int]] = {
    "cp2-recurrence": (RECURS, replace(borrowed(2, cp=2), compile="blocks"), 2),
    "cp2-scan": (SCANS, replace(borrowed(2, cp=2), compile="blocks"), 2),
}


@contract("COMP-06g", asks=("built", "train"), cases=COMPILED, source="modal; CMP-04", tier="dist", slow=True)
def ranks_of_a_row_compile_the_same_graphs(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """All context-parallel ranks compile the same number of graphs, including the first, which receives no state, and
    the last, which sends none. A compiled step that passes state from rank to rank equals one rank's.

    Ranks that break a layer in different places hang when one recompiles and the other does not.
    """
    instruments.graphs.reset_compiler()
    weights = drawn_weights(stack.built(recipe, "nemo_native").parameters)
    given = (last_label(16),)
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, given, "gradients", weights=weights)
    every = gathered(instruments.graphs.compiled_count())
    assert every[0] > 0, "nothing was compiled"
    for rank, graphs in enumerate(every):
        assert graphs == every[0], f"{every[0]} graphs were compiled on rank 0 and {graphs} on rank {rank}"
    words = loss_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words
