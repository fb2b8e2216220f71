"""Padding in a batch: positions at the end of a row or of a document that hold a token and no label.

A row is padded to the length of its batch. The oracle is the same stack on the rows as they were.
"""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics
from contracts.law._support.label_weights import WINDOW, label_shares
from contracts.law._support.late import Tensor, torch
from contracts.law._support.small_models import DENSE as DENSE_LAYERS
from contracts.law._support.small_models import Cell, cell, loss_difference, session
from contracts.law._support.step_comparison import gradient_differences, on_one_rank_and_many
from contracts.law._support.training_run import AHEAD, DENSE, LETTERS, Rows, batch, drawn_weights, run, table
from contracts.law._support.transformer_layouts import L, needs_of
from contracts.spec import FLOAT32_TRANSFORMER, FLOAT64_SCAN, Execution, Moe, Recipe, Refused, Tokens, Training, within
from contracts.spec.violations import require_none

LENGTH = 13
PLAIN = replace(
    LETTERS, name="letters-padded", moe=Moe(experts=14, top_k=3, expert_hidden=20, shared_hidden=28, aux_loss=0.0)
)
"""No loss of a router: what that has to do with padding is for MOE-05j to ask."""
PADDED: dict[str, tuple[Recipe, tuple[int, ...], int]] = {  # recipe, tokens of each row that are none, microbatches
    "equal-rows": (PLAIN, (9, 9, 9), 1),
    "unequal-rows": (PLAIN, (13, 9, 4, 2), 1),
    "a-row-of-padding": (PLAIN, (6, 0, 11), 1),
    "a-microbatch-of-padding": (PLAIN, (12, 5, 0, 0, 3, 7), 3),
    "dense": (DENSE, (13, 9, 4, 2), 1),
    "a-dense-microbatch-of-padding": (DENSE, (12, 5, 0, 0, 3, 7), 3),
}
PADS = {
    "": ("experts",),
    "a-microbatch-of-padding": ("experts", "microbatches"),
    "dense": (),
    "a-dense-microbatch-of-padding": ("microbatches",),
}


@contract(
    "PAR-05i", asks=("built", "train"), cases=PADDED, needs=PADS, conventions=WINDOW,
    source="Megatron-Core: padding_mask; transformers: DataCollatorWithPadding; F19",
)  # fmt: skip
def padding_changes_no_loss_and_no_gradient(
    stack: Training, recipe: Recipe, lengths: tuple[int, ...], microbatches: int
) -> None:
    """Padding at the end of rows changes no loss and no gradient: a step over padded rows equals one over the rows as
    they were, each weighted by its labels, and the token that pads gets no gradient.

    A mean over positions makes the loss smaller the more a batch is padded. A row, or a microbatch, of only padding
    adds nothing, and no mean of it divides 0 by 0.
    """
    pad = recipe.vocab - 1
    weights = drawn_weights(table(stack, recipe))
    rows = [_row(recipe, number, length) for number, length in enumerate(lengths)]
    padded = [torch.nn.functional.pad(row_T, (0, LENGTH - len(row_T)), value=pad) for row_T in rows]
    (whole,) = run(
        stack, recipe, (_labelled(torch.stack(padded), lengths),), "gradients", weights=weights,
        microbatches=microbatches,
    ).steps  # fmt: skip
    labels = [max(length - 1, 0) for length in lengths]
    assert whole.tokens == sum(labels), f"{whole.tokens} labels count, expected {sum(labels)} of {lengths} tokens"
    shares = label_shares(stack, labels, microbatches)
    lm = 0.0
    want: dict[str, Tensor] = {}
    for row_T, count, share in zip(rows, labels, shares, strict=True):
        if count:
            given = (_labelled(row_T[None], (len(row_T),)),)
            (alone,) = run(stack, recipe, given, "gradients", weights=weights).steps
            lm += share * alone.losses["lm"]
            for name, each in numerics.tensors(alone.gradients).items():
                want[name] = want[name] + share * each if name in want else share * each
    assert abs(whole.losses["lm"] - lm) <= within(1e-11) * lm, (
        f"lm is {whole.losses['lm']:.10g} with padding, {lm:.10g} without"
    )
    words = numerics.gradient_differences("with padding the gradient of", whole.gradients, want, FLOAT64_SCAN)
    assert not words, words
    found = numerics.tensors(whole.gradients)
    for row in table(stack, recipe):
        if row.role == "embedding" and recipe.untied_embeddings:
            assert not found[row.name][pad].any(), f"the token that pads has a gradient in {row.name}"


def _row(recipe: Recipe, number: int, length: int) -> Tensor:
    """The tokens of a row, (T,); none of them is the one that pads."""
    return fixtures.integers(f"padded {number}", (LENGTH,), recipe.vocab - 1)[:length]


def _labelled(tokens_BT: Tensor, lengths: tuple[int, ...]) -> Tokens:
    """Each token before the last of its row predicts the next one; no position after it has a label."""
    labels_BT = tokens_BT.roll(-1, 1)
    for row, length in enumerate(lengths):
        labels_BT[row, max(length - 1, 0) :] = -100
    return Tokens(tokens=numerics.array(tokens_BT), labels=numerics.array(labels_BT))


UNLABELLED: dict[str, tuple[Recipe, int]] = {"letters": (LETTERS, 1), "dense": (DENSE, 1), "dense-in-two": (DENSE, 2)}


@contract(
    "PAR-05k", asks=("built", "train"), cases=UNLABELLED, sheds=("packed",),
    needs={"letters": ("experts",), "dense": (), "dense-in-two": ("microbatches", "uneven-microbatches")},
    source="Automodel #3796; F19; F21",
)  # fmt: skip
def a_step_without_a_label_destroys_nothing(stack: Training, recipe: Recipe, microbatches: int) -> None:
    """After a step in which no label counts, weights and optimizer state are finite, and the next step has a finite
    loss; or the batch is refused.

    Truncation takes the answer off every row of a step, and its mean is 0 / 0. Where that reaches the gradients the run
    continues with NaN in every weight. The losses of such a step, and whether weights decay in it, are left open.
    """
    weights = drawn_weights(table(stack, recipe))
    given = [replace(batch(f"unlabelled {at}", recipe=recipe), documents=None) for at in range(3)]
    labels_BT = numerics.tensor(given[1].labels)
    given[1] = replace(given[1], labels=numerics.array(labels_BT.fill_(-100)))
    try:
        _, step, after = run(
            stack, recipe, tuple(given), "weights", "optimizer", weights=weights, microbatches=microbatches
        ).steps
    except Refused:
        run(stack, recipe, (given[0], given[2]), weights=weights, microbatches=microbatches)  # it is about the labels
        return
    assert step.tokens == 0, f"{step.tokens} labels count, and there is none"
    for name, held in numerics.tensors({**step.weights, **step.optimizer}).items():
        assert bool(held.isfinite().all()), f"{name} is not finite after a step without a label"
    assert math.isfinite(after.losses["lm"]), f"lm is {after.losses['lm']} in the step after one without a label"


WITHIN: Rows = (((4, 9), 2), ((13,), 0), ((1, 5, 7), 3))
"""Documents of each row and how many of its labels are masked."""
BETWEEN: dict[str, tuple[Recipe, str]] = {
    "documents-of-their-own": (replace(PLAIN, mtp=AHEAD.mtp), "own"),
    "ends-of-documents": (replace(PLAIN, mtp=AHEAD.mtp), "end"),
    "dense-ends-of-documents": (replace(DENSE, mtp=AHEAD.mtp), "end"),
}


@contract(
    "PAR-05m", asks=("built", "train"), cases=BETWEEN,
    needs={"": ("packed", "prediction-heads", "experts"), "dense-ends-of-documents": ("packed", "prediction-heads")},
    source="Megatron-LM #6205",
)  # fmt: skip
def padding_between_documents_is_none_of_them(stack: Training, recipe: Recipe, whose: str) -> None:
    """Padding between the documents of a packed row, as the end of the document before it or as a document of its own,
    changes no label count, no loss and no gradient, those of prediction heads included.

    Context and tensor parallelism want documents whose lengths are multiples of their ranks. Labels that are shifted
    for a depth by the borders of documents without padding come from another document, or are lost.
    """
    pad = recipe.vocab - 1
    weights = drawn_weights(table(stack, recipe))
    plain = batch("between", pad, WITHIN)
    (want,), (got,) = (
        run(stack, recipe, (given,), "gradients", weights=weights).steps
        for given in (plain, _padded_between(plain, pad, whose))
    )
    assert got.tokens == want.tokens, f"{got.tokens} labels count with padding, {want.tokens} without"
    for name in ("lm", "mtp"):
        found, loss = got.losses[name], want.losses[name]
        assert abs(found - loss) <= within(1e-11) * loss, f"{name} is {found:.10g} with padding, {loss:.10g} without"
    words = numerics.gradient_differences("with padding the gradient of", got.gradients, want.gradients, FLOAT64_SCAN)
    assert not words, words


def _padded_between(plain: Tokens, pad: int, whose: str) -> Tokens:
    """The batch with each document padded to a multiple of 4, and each row to the longest."""
    assert plain.documents is not None
    tokens_BT, labels_BT, documents_BT = map(numerics.tensor, (plain.tokens, plain.labels, plain.documents))
    rows = []
    for row in range(len(tokens_BT)):
        parts = []
        for number in torch.unique(documents_BT[row]).tolist():
            place = documents_BT[row] == number
            missing = -int(place.sum()) % 4
            of_pad = torch.full((missing,), 2 * number + (whose == "own"))
            parts.append(torch.stack([
                torch.cat([tokens_BT[row][place], torch.full((missing,), pad)]),
                torch.cat([labels_BT[row][place], torch.full((missing,), -100)]),
                torch.cat([2 * documents_BT[row][place], of_pad]),
            ]))  # fmt: skip
        rows.append(torch.cat(parts, dim=1))
    longest = max(row.shape[1] for row in rows)
    last = torch.tensor([pad, -100, 99])
    filled = [torch.cat([row, last[:, None].expand(3, longest - row.shape[1])], dim=1) for row in rows]
    tokens, labels, documents = (numerics.array(each) for each in torch.stack(filled, dim=1))
    return Tokens(tokens=tokens, labels=labels, documents=documents)


HALVES = replace(DENSE_LAYERS, pattern="AE|AE")
ON_RANKS: dict[str, Cell] = {
    "dp2": cell(L, 2),
    "fsdp2": cell(L, 2, fsdp=True),
    "fsdp2-in-two": cell(L, 2, fsdp=True, microbatches=2),
    "dense-dp2": cell(DENSE_LAYERS, 2),
    "dense-dp4": cell(DENSE_LAYERS, 4),
    "dense-tp2-sp": cell(DENSE_LAYERS, 2, tp=2, sp=True, microbatches=2),
    "dense-cp2": cell(DENSE_LAYERS, 2, cp=2, microbatches=4),
    "borrowed-ep2-fsdp": cell(L, 2, ep=2, fsdp=True),
    "dense-1f1b": cell(HALVES, 2, pp=2, microbatches=4),
}
REACH = (7, 16, 0, 0)
"""Tokens of each row; the second of two ranks, and the last two of four microbatches, have only padding. Under context
parallel the second rank has nothing else of the first row either."""


@contract("PAR-05j", asks=("built", "train"), cases=ON_RANKS, needs=needs_of(ON_RANKS) | {"dense-1f1b": ()},
          conventions=WINDOW, source="F19; torchtitan: global_valid_tokens", tier="dist")  # fmt: skip
def a_rank_of_padding_adds_nothing(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """On several ranks, one or more of which have only padding, losses, label counts and gradients equal one rank's.

    A rank without a label that divides by its own count hands NaN to all others. One that leaves the reduction out
    leaves its peers waiting.
    """
    asked = session(stack, recipe, execution, 1, "gradients")
    rows = [numerics.tensor(each) for each in (asked.batches[0].tokens, asked.batches[0].labels)]
    tokens_BT, labels_BT = (each.clone() for each in rows)
    for row, length in enumerate(REACH):
        tokens_BT[row, length:] = recipe.vocab - 1
        labels_BT[row, max(length - 1, 0) :] = -100
    given = Tokens(tokens=numerics.array(tokens_BT), labels=numerics.array(labels_BT))
    asked = replace(asked, batches=(given,))
    ((alone, many),) = on_one_rank_and_many(stack, asked, layout=asked.execution.layout)
    require_none(loss_difference(alone, many), gradient_differences(alone, many, tolerance=FLOAT32_TRANSFORMER))
