"""What is counted over whole rows whose tokens lie on several ranks: labels, sequences, the balance of experts.

Each of these on a batch that leaves little else to see: the labels at the borders, ranks without a label, a balance
that outweighs the task. The step as a whole stands in `context_parallel.py`.
"""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.context_parallel import HALVES, Rows
from contracts.checks._support.multi_rank_run import (
    SPREAD,
    borrowed,
    both,
    gradients_apart,
    losses_apart,
)
from contracts.checks._support.training_run import batch
from contracts.checks.parallel.context_parallel import AHEAD
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.spec.training import Execution, Tokens, Training

AT_BORDERS: dict[str, tuple[Execution, int]] = {
    "cp2": (borrowed(2, cp=2), 2),
    "cp2-fsdp": (borrowed(2, cp=2, fsdp=True), 2),
    "cp4": (borrowed(4, cp=4), 4),
    "cp2-tp2-sp": (borrowed(4, cp=2, tp=2, sp=True), 4),
}


@contract("PAR-06i", asks=("built", "train"), cases=AT_BORDERS, source="F05; ROP-23", tier="dist")
def labels_at_the_borders_of_ranks_count(stack: Training, execution: Execution, world: int) -> None:
    """The label of the last token of a rank is the first token of the next, for the loss and for heads that look
    ahead; the two labels on either side of each border alone count here.

    Labels that each rank shifts for itself lose one in T / CP. A further head that looks for its token in the run of
    its rank finds none at the end, and predicts what is behind the border without it.
    """
    given = _borders(execution.degrees.cp)
    ((alone, many),) = both(stack, AHEAD, execution, (given,), "gradients")
    counted = 4 * 4 * (execution.degrees.cp - 1)
    assert many.tokens == counted, f"{many.tokens} labels count, expected {counted}"
    words = losses_apart(alone, many, "lm", "mtp")
    words = words or gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"


def _borders(runs: int) -> Tokens:
    """Rows of one document, in which two tokens before each border between so many runs have labels, and two behind."""
    import torch

    given = batch("context borders", AHEAD.vocab, (((16,), 0),) * 4)
    tokens_BT = instruments.numerics.tensor(given.tokens)
    labels_BT = torch.full_like(tokens_BT, -100)
    for border in range(16 // runs, 16, 16 // runs):
        labels_BT[:, border - 2 : border + 2] = tokens_BT[:, border - 1 : border + 3]
    return replace(given, labels=instruments.numerics.array(labels_BT), documents=None)


READ: dict[str, tuple[Execution, int]] = {
    "cp2": (borrowed(2, cp=2), 2),
    "cp2-fsdp": (borrowed(2, cp=2, fsdp=True), 2),
    "cp2-dp2": (borrowed(4, cp=2), 4),
    "cp2-hsdp": (borrowed(4, cp=2, fsdp=True, replicas=2), 4),
}


UNEVEN = replace(SPREAD, name="context-uneven", batch=replace(SPREAD.batch, total=6))


@contract("PAR-06j", asks=("built", "train"), cases=READ, source="F05; DAT-27; ROP-07", tier="dist")
def ranks_of_one_row_read_the_same_sequences(stack: Training, execution: Execution, world: int) -> None:
    """Over the stack's own data the ranks of a row read its sequences together, each of its tokens once, and the
    sequences of a step are those of one rank.

    A reader that counts these ranks among those that read other data loses half of every batch, and one that cuts a
    row which the model cuts again, half of every row.
    """
    found = both(stack, UNEVEN, execution, (), "gradients", steps=2)
    for alone, many in found:
        assert many.samples == alone.samples, f"step {alone.number} reads {many.samples}, on one rank {alone.samples}"
        assert many.tokens == alone.tokens, f"{many.tokens} labels count, {alone.tokens} on one rank"
    alone, many = found[0]
    words = losses_apart(alone, many) or gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"


WITHOUT_FIRST: Rows = (((16,), 15), ((8, 8), 8), ((7, 2, 7), 9), ((9, 7), 8))
"""The first half of each row has no label."""


WITHOUT_THREE: Rows = (((8,), 6), ((2, 6), 6), ((1, 4, 3), 7), ((3, 3, 2), 6))
"""The first three quarters of each row have none, and one row has none at all."""


UNLABELLED: dict[str, tuple[Execution, Rows, int]] = {
    "cp2": (borrowed(2, cp=2), WITHOUT_FIRST, 2),
    "cp2-fsdp": (borrowed(2, cp=2, fsdp=True), WITHOUT_FIRST, 2),
    "cp2-in-microbatches": (replace(borrowed(2, cp=2), microbatches=2), HALVES, 2),
    "cp2-dp2": (borrowed(4, cp=2), WITHOUT_FIRST, 4),
    "cp4": (replace(borrowed(4, cp=4), microbatches=2), WITHOUT_THREE, 4),
}


@contract("PAR-05h", asks=("built", "train"), cases=UNLABELLED, source="F19; DPS-20; DPS-22", tier="dist")
def a_label_weighs_the_same_on_whatever_rank_of_a_row(
    stack: Training, execution: Execution, rows: Rows, world: int
) -> None:
    """Labels of a batch weigh alike where the ranks of a row have unequally many, and some none.

    What the loss divides by is counted over the whole row. Means of ranks, averaged, weigh the one label of a short
    answer as much as all of the prompt's run.
    """
    ((alone, many),) = both(stack, AHEAD, execution, (batch("context labels", AHEAD.vocab, rows),), "gradients")
    assert many.tokens == alone.tokens, f"{many.tokens} labels count, {alone.tokens} on one rank"
    words = losses_apart(alone, many) or gradients_apart(alone, many)
    assert not words, f"{words} (rank {here().rank})"
