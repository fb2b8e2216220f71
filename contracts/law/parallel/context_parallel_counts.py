"""Counts over whole rows whose tokens lie on several ranks: labels, sequences, the balance of experts.

Each count is judged on a batch that isolates it: labels at the borders only, ranks without a label, a balance loss that
outweighs the task. `context_parallel.py` judges the step as a whole.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.context_parallel import HALVES
from contracts.law._support.late import torch
from contracts.law._support.multi_rank_run import SPREAD, borrowed, one_rank_and_many, with_rungs
from contracts.law._support.step_comparison import gradient_differences, label_difference, loss_difference
from contracts.law._support.training_run import Rows, batch
from contracts.law.parallel.context_parallel import AHEAD
from contracts.spec import Execution, Recipe, Tokens, Training

AT_BORDERS: dict[str, tuple[Recipe, Execution, int]] = {
    "cp2": (AHEAD, borrowed(2, cp=2), 2),
    "cp2-fsdp": (AHEAD, borrowed(2, cp=2, fsdp=True), 2),
    "cp4": (AHEAD, borrowed(4, cp=4), 4),
    "cp2-tp2-sp": (AHEAD, borrowed(4, cp=2, tp=2, sp=True), 4),
}


@contract("PAR-06i", asks=("built", "train"), cases=with_rungs(AT_BORDERS), needs=(), sheds=("packed",),
          source="F05; ROP-23", tier="dist")  # fmt: skip
def labels_at_the_borders_of_ranks_count(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under context parallel, the label of a rank's last token is the first token of the next rank, for the main loss
    and for the prediction heads.

    Only the two labels on each side of every border count in this batch. If each rank shifts labels by itself, one
    label in T / CP is lost. A prediction head that looks only at its own rank's tokens has no target at the end of
    them, and predicts what lies beyond the border without it.
    """
    given = _borders(execution.degrees.cp)
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, (given,), "gradients")
    counted = 4 * 4 * (execution.degrees.cp - 1)
    assert many.tokens == counted, f"{many.tokens} labels count, expected {counted}"
    told = (name for name in ("lm", "mtp") if name in alone.losses)
    words = loss_difference(alone, many, *told) or gradient_differences(alone, many)
    assert not words, words


def _borders(runs: int) -> Tokens:
    """Rows of one document, with labels for two tokens before and two after each border between `runs` ranks."""
    given = batch("context borders", AHEAD.vocab, (((16,), 0),) * 4)
    tokens_BT = numerics.tensor(given.tokens)
    labels_BT = torch.full_like(tokens_BT, -100)
    for border in range(16 // runs, 16, 16 // runs):
        labels_BT[:, border - 2 : border + 2] = tokens_BT[:, border - 1 : border + 3]
    return replace(given, labels=numerics.array(labels_BT), documents=None)


UNEVEN = replace(SPREAD, name="context-uneven", batch=replace(SPREAD.batch, total=6))
READ: dict[str, tuple[Recipe, Execution, int]] = {
    "cp2": (UNEVEN, borrowed(2, cp=2), 2),
    "cp2-fsdp": (UNEVEN, borrowed(2, cp=2, fsdp=True), 2),
    "cp2-dp2": (UNEVEN, borrowed(4, cp=2), 4),
    "cp2-hsdp": (UNEVEN, borrowed(4, cp=2, fsdp=True, replicas=2), 4),
}


@contract("PAR-06j", asks=("built", "train"), cases=with_rungs(READ), needs=("own-data",), source="F05; DAT-27; ROP-07",
          tier="dist")  # fmt: skip
def ranks_of_one_row_read_the_same_sequences(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """With the stack's own data, the ranks of a context-parallel group read the same sequences, train on each token
    once, and together consume the sequences that one rank consumes.

    A data loader that counts context-parallel ranks as data-parallel ranks loses half of every batch. A loader that
    cuts rows which the model cuts again loses half of every row.
    """
    found = one_rank_and_many(stack, recipe, execution, (), "gradients", steps=2)
    for alone, many in found:
        assert many.samples == alone.samples, f"step {alone.number} reads {many.samples}, on one rank {alone.samples}"
        words = label_difference(alone, many)
        assert not words, words
    alone, many = found[0]
    words = loss_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words


WITHOUT_FIRST: Rows = (((16,), 15), ((8, 8), 8), ((7, 2, 7), 9), ((9, 7), 8))
"""The first half of each row has no label."""


WITHOUT_THREE: Rows = (((8,), 6), ((2, 6), 6), ((1, 4, 3), 7), ((3, 3, 2), 6))
"""The first three quarters of each row have none, and one row has none at all."""


UNLABELLED: dict[str, tuple[Recipe, Execution, Rows, int]] = {
    "cp2": (AHEAD, borrowed(2, cp=2), WITHOUT_FIRST, 2),
    "cp2-fsdp": (AHEAD, borrowed(2, cp=2, fsdp=True), WITHOUT_FIRST, 2),
    "cp2-in-microbatches": (AHEAD, replace(borrowed(2, cp=2), microbatches=2), HALVES, 2),
    "cp2-dp2": (AHEAD, borrowed(4, cp=2), WITHOUT_FIRST, 4),
    "cp4": (AHEAD, replace(borrowed(4, cp=4), microbatches=2), WITHOUT_THREE, 4),
}


@contract("PAR-05h", asks=("built", "train"), cases=with_rungs(UNLABELLED), needs=(), sheds=("packed",),
          source="F19; DPS-20; DPS-22", tier="dist")  # fmt: skip
def a_label_weighs_the_same_on_whatever_rank_of_a_row(
    stack: Training, recipe: Recipe, execution: Execution, rows: Rows, world: int
) -> None:
    """Under context parallel, every label weighs the same even when the ranks hold unequal numbers of labels, and some
    none.

    The divisor of the loss is the label count of the whole row. Averaging per-rank means gives the single label of a
    short answer as much weight as all the labels on another rank.
    """
    ((alone, many),) = one_rank_and_many(
        stack, recipe, execution, (batch("context labels", AHEAD.vocab, rows, recipe=recipe),), "gradients"
    )
    words = label_difference(alone, many) or loss_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words
