"""The state that crosses the border between two ranks of a row, and its gradient on the way back.

One mixer alone, and nothing to see but what crossed every border; the step as a whole stands in `context_parallel.py`.
"""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.context_parallel_state import RECURS, SCANS, last_label
from contracts.checks._support.multi_rank_run import borrowed, both, gradients_apart, losses_apart
from contracts.checks._support.training_run import uneven
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.training import Execution, Training

CARRIED: dict[str, tuple[Mode, Execution, int, int]] = {
    "cp2": ("nemo_native", borrowed(2, cp=2), 16, 2),
    "cp2-custom-mixers": ("author_dp", borrowed(2, cp=2), 16, 2),
    "cp4-short": ("nemo_native", borrowed(4, cp=4), 8, 4),
    "cp4-short-custom-mixers": ("author_dp", borrowed(4, cp=4), 8, 4),
    "cp4-single": ("nemo_native", borrowed(4, cp=4), 4, 4),
    "cp2-tp2-sp": ("author_dp", borrowed(4, cp=2, tp=2, sp=True), 16, 4),
}


@contract("BLK-04t", asks=("built", "train"), cases=CARRIED, source="naming; SSM-18", tier="dist")
def a_scan_goes_on_where_the_rank_before_ended(
    stack: Training, mode: Mode, execution: Execution, length: int, world: int
) -> None:
    """The state of a scan, and what its convolution looks back on, pass from rank to rank, and their gradients back.

    A layer of M alone, and one label behind the last token of each row: what the first token has to do with it went
    through every rank. With one token a rank a convolution looks back on three ranks.
    """
    _carried(stack, SCANS, mode, execution, length)


@contract("BLK-05j", asks=("built", "train"), cases=CARRIED, source="naming; SSM-18", tier="dist")
def a_recurrence_goes_on_where_the_rank_before_ended(
    stack: Training, mode: Mode, execution: Execution, length: int, world: int
) -> None:
    """The state of R passes from rank to rank, and its gradient back, through a function that is not linear in it."""
    _carried(stack, RECURS, mode, execution, length)


def _carried(stack: Training, recipe: Recipe, mode: Mode, execution: Execution, length: int) -> None:
    weights = uneven(stack.built(recipe, mode).parameters)
    given = (last_label(length),)
    ((alone, many),) = both(stack, recipe, replace(execution, mode=mode), given, "gradients", weights=weights)
    grad_VD = instruments.numerics.tensor(many.gradients["embedding.weight"])
    lost = [token for token in range(4 * length) if not grad_VD[token].abs().max() > 0]
    assert not lost, f"no gradient reaches the tokens at {lost} of {4 * length} (rank {here().rank})"
    words = losses_apart(alone, many) or gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"
