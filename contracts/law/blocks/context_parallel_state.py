"""Context parallelism: the state that passes from rank to rank along a row, and its gradient on the way back.

Each model has one mixer only, so the result depends on what passed every rank boundary. PAR tests the whole step.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.instruments.ranks import here
from contracts.law._support.context_parallel import RECURS, SCANS, last_label
from contracts.law._support.multi_rank_run import borrowed, one_rank_and_many
from contracts.law._support.step_comparison import gradient_differences, loss_difference
from contracts.law._support.training_run import drawn_weights
from contracts.spec import Execution, Mode, Recipe, Training

CARRIED: dict[str, tuple[Mode, Execution, int, int]] = {
    "cp2": ("nemo_native", borrowed(2, cp=2), 16, 2),
    "cp2-custom-mixers": ("author_dp", borrowed(2, cp=2), 16, 2),
    "cp4-short": ("nemo_native", borrowed(4, cp=4), 8, 4),
    "cp4-short-custom-mixers": ("author_dp", borrowed(4, cp=4), 8, 4),
    "cp4-single": ("nemo_native", borrowed(4, cp=4), 4, 4),
    "cp2-tp2-sp": ("author_dp", borrowed(4, cp=2, tp=2, sp=True), 16, 4),
}


def _of(recipe: Recipe) -> dict[str, tuple[Recipe, Mode, Execution, int, int]]:
    return {name: (recipe, *others) for name, others in CARRIED.items()}


@contract("BLK-04t", asks=("built", "train"), cases=_of(SCANS), needs=("mamba",), source="naming; SSM-18", tier="dist")
def a_scan_goes_on_where_the_rank_before_ended(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, length: int, world: int
) -> None:
    """Under context parallelism the scan state and the convolution's last inputs pass from each rank to the next, and
    their gradients pass back.

    The model is one M layer, and only the last token of each row has a label, so the first token reaches the loss only
    through every rank. With one token per rank, the convolution reads inputs from three ranks.
    """
    _carried(stack, recipe, mode, execution, length)


@contract(
    "BLK-05j", asks=("built", "train"), cases=_of(RECURS), needs=("recurrent",), source="naming; SSM-18", tier="dist"
)
def a_recurrence_goes_on_where_the_rank_before_ended(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, length: int, world: int
) -> None:
    """Under context parallelism the state of R passes from each rank to the next, and its gradient passes back, through
    a recurrence that is not linear in the state.
    """
    _carried(stack, recipe, mode, execution, length)


def _carried(stack: Training, recipe: Recipe, mode: Mode, execution: Execution, length: int) -> None:
    weights = drawn_weights(stack.built(recipe, mode).parameters)
    given = (last_label(length),)
    ((alone, many),) = one_rank_and_many(
        stack, recipe, replace(execution, mode=mode), given, "gradients", weights=weights
    )
    grad_VD = numerics.tensor(many.gradients["embedding.weight"])
    lost = [token for token in range(4 * length) if not grad_VD[token].abs().max() > 0]
    assert not lost, f"no gradient reaches the tokens at {lost} of {4 * length} (rank {here().rank})"
    words = loss_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words
