"""The state that crosses the border between two ranks of a row, and its gradient on the way back.

One mixer alone, and nothing to see but what crossed every border; the step as a whole stands in `context_parallel.py`.
"""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks.numeric._spread import SPREAD, borrowed, both, gradients_apart, losses_apart
from contracts.checks.numeric._training import uneven
from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.training import Execution, Tokens, Training

SCANS = replace(SPREAD, name="context-scan", pattern="M", depth=1, moe=None)
RECURS = replace(SCANS, name="context-recurrence", pattern="R")
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
    given = (_last_label(length),)
    ((alone, many),) = both(stack, recipe, replace(execution, mode=mode), given, "gradients", weights=weights)
    grad_VD = instruments.numerics.tensor(many.gradients["embedding.weight"])
    lost = [token for token in range(4 * length) if not grad_VD[token].abs().max() > 0]
    assert not lost, f"no gradient reaches the tokens at {lost} of {4 * length} (rank {here().rank})"
    words = losses_apart(alone, many) or gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"


def _last_label(length: int) -> Tokens:
    """4 rows of one document, no token twice, and a label at the last of each row alone."""
    import torch

    tokens_BT = torch.arange(4 * length).view(4, length)
    labels_BT = torch.full_like(tokens_BT, -100)
    labels_BT[:, -1] = tokens_BT[:, 0]
    array = instruments.numerics.array
    return Tokens(tokens=array(tokens_BT), labels=array(labels_BT))


COMPILED: dict[str, tuple[Recipe, Execution, int]] = {
    "cp2-recurrence": (RECURS, replace(borrowed(2, cp=2), compile="blocks"), 2),
    "cp2-scan": (SCANS, replace(borrowed(2, cp=2), compile="blocks"), 2),
}


@contract("COMP-06g", asks=("built", "train"), cases=COMPILED, source="modal; CMP-04", tier="dist", slow=True)
def ranks_of_a_row_compile_the_same_graphs(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """The first rank of a row waits for no state and the last hands none on, and yet all make as many graphs; compiled,
    the step of a state that is handed from rank to rank is what it is on one.

    Ranks that break a layer in different places hang where one compiles anew and the other does not.
    """
    instruments.graphs.forget()
    weights = uneven(stack.built(recipe, "nemo_native").parameters)
    given = (_last_label(16),)
    ((alone, many),) = both(stack, recipe, execution, given, "gradients", weights=weights)
    every = gathered(instruments.graphs.made())
    assert every[0] > 0, "nothing was compiled"
    for rank, graphs in enumerate(every):
        assert graphs == every[0], f"{every[0]} graphs are made on rank 0 and {graphs} on rank {rank}"
    words = losses_apart(alone, many) or gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"
