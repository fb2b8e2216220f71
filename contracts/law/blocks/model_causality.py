"""Causality of a whole model, and of a block with experts: a position depends on itself and on earlier tokens of its
own document."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import (
    PLAIN,
    PLAIN_SIGMOID,
)
from contracts.law._support.model_passes import (
    EVERYTHING,
    MOE,
    PACKED,
    WHOLE,
    batch,
    drawn_weights,
    not_changed_from,
    one_pass,
    tensor,
)
from contracts.law._support.recipes import DENSE, SMALL_DSA
from contracts.law._support.training_run import OF_SCANS, SCANS
from contracts.spec import FLOAT64, FLOAT64_SCAN, Array, Arrays, Blocks, Dsa, Mode, Moe, Pass, Recipe, Tokens, Training

_SPARSE = replace(SMALL_DSA, pattern="AE", depth=3, dsa=Dsa(a_ranks=(1,), index_heads=8, index_head_dim=8, top_k=3))
"""Eight index heads: with two, relu makes a quarter of all scores zero, and equal scores have no order."""

CHANGED: dict[str, tuple[Recipe, Mode, int]] = {  # recipe, mode, the position whose token changes, of 13
    "streams-and-depths": (EVERYTHING, "nemo_native", 9),
    "custom-mixers": (WHOLE, "author_dp", 6),
    "sparse-attention": (_SPARSE, "author_dp", 8),
    "dense": (DENSE, "nemo_native", 6),
    "the-last-token": (EVERYTHING, "nemo_native", 12),
    **{name: (recipe, "nemo_native", 6) for name, recipe in SCANS.items()},
}


CUSTOM = {"custom-mixers": ("mamba", "recurrent"), "sparse-attention": ("dsa", "mla"), **OF_SCANS}
"""What some cases are about; a leaner recipe is another question."""


@contract("BLK-01e", asks=("initial", "run_model"), cases=CHANGED, needs=CUSTOM, source="naming")
def a_model_does_not_see_what_comes_later(stack: Training, recipe: Recipe, mode: Mode, place: int) -> None:
    """Replacing the token at t changes a model's logits from t on in its own row and nowhere else; logits of prediction
    depth k change from t - k on.

    A leak of a single position gives the best loss curve of the whole project.
    """
    tokens = batch(recipe, ((13,), (13,), (13,)))
    weights = drawn_weights(stack, recipe, mode=mode)
    changed = tensor(tokens.tokens)
    changed[0, place] = (changed[0, place] + 1) % recipe.vocab
    other = replace(tokens, tokens=numerics.array(changed))
    before, after = (one_pass(stack, recipe, weights, each, mode=mode) for each in (tokens, other))
    words = not_changed_from(before.logits, after.logits, place)
    assert not words, f"token {place} changed: {words}"
    for depth, (one, two) in enumerate(zip(before.mtp_logits, after.mtp_logits, strict=True), start=1):
        words = not_changed_from(one, two, place - depth)
        assert not words, f"token {place} changed, depth {depth}: {words}"


_UNBALANCED = replace(MOE, aux_loss=0.0)  # the aux loss is computed per row, not per document
SEPARATED: dict[str, tuple[Recipe, Mode]] = {
    "streams-and-depths": (EVERYTHING, "nemo_native"),
    "every-family": (replace(WHOLE, moe=_UNBALANCED), "nemo_native"),
    "custom-mixers": (replace(WHOLE, moe=_UNBALANCED), "author_dp"),
    "dense": (DENSE, "nemo_native"),
    "latent-and-sparse": (replace(_SPARSE, moe=_UNBALANCED), "author_dp"),
}


PACKED_ROWS = {
    "": ("packed",),
    "custom-mixers": ("packed", "mamba", "recurrent"),
    "latent-and-sparse": ("packed", "dsa", "mla"),
}


@contract("BLK-02e", asks=("initial", "run_model"), cases=SEPARATED, needs=PACKED_ROWS, source="F06")
def packed_documents_are_documents_by_themselves(stack: Training, recipe: Recipe, mode: Mode) -> None:
    """A document packed into a row has the logits that it has by itself, and the gradient of the batch is the mean of
    the documents' gradients, weighted by their label counts.

    If one layer lets a document see its neighbour, the model trains on text that no user will ever write.
    """
    weights, tokens = drawn_weights(stack, recipe, mode=mode), batch(recipe, PACKED, masked=False, packed=True)
    backward = recipe.mtp is None
    packed = one_pass(stack, recipe, weights, tokens, backward=backward, mode=mode)
    shares: list[tuple[int, Arrays]] = []
    for row, lengths in enumerate(PACKED):
        start = 0
        for length in lengths:
            alone, labels = _cut(tokens, row, start, start + length)
            run = one_pass(stack, recipe, weights, alone, backward=backward and labels > 0, mode=mode)
            for name, got, want in _pairs(packed, run):
                part = tensor(got)[row : row + 1, start : start + length]
                words = numerics.difference(f"{name} of row {row} from {start} on", part, want, FLOAT64)
                assert not words, words
            shares.append((labels, run.gradients))
            start += length
    if backward:
        words = numerics.gradient_differences(
            "the gradient of", packed.gradients, _weighed(shares, packed.gradients), FLOAT64_SCAN
        )
        assert not words, words


def _pairs(packed: Pass, alone: Pass) -> list[tuple[str, Array, Array]]:
    depths = zip(packed.mtp_logits, alone.mtp_logits, strict=True)
    return [("the logits", packed.logits, alone.logits), *((f"depth {k + 1}", *pair) for k, pair in enumerate(depths))]


def _cut(tokens: Tokens, row: int, start: int, end: int) -> tuple[Tokens, int]:
    """One document as a batch of one row, and how many labels it has."""
    pieces = [tensor(each)[row : row + 1, start:end] for each in (tokens.tokens, tokens.labels)]
    array = numerics.array
    return Tokens(tokens=array(pieces[0]), labels=array(pieces[1])), int((pieces[1] != -100).sum())


def _weighed(shares: list[tuple[int, Arrays]], names: Arrays) -> Arrays:
    """The gradient of the mean over all labels, from the gradients of the documents' means and their label counts."""
    labels = sum(count for count, _ in shares)
    parts = [(count / labels, numerics.tensors(gradients)) for count, gradients in shares if count]
    summed = {name: sum(by * part[name] for by, part in parts if name in part) for name in names}
    return {name: numerics.array(each) for name, each in summed.items() if not isinstance(each, int)}


PERTURBED = {
    "dropless": (PLAIN_SIGMOID, 0, 4),
    "dropless-softmax": (PLAIN, 1, 2),
    "full": (replace(PLAIN_SIGMOID, capacity_factor=0.7), 1, 3),
    "full-softmax": (replace(PLAIN, capacity_factor=0.5), 0, 5),
}


@contract("BLK-01b", asks="run_block", cases=PERTURBED, source="causality")
def a_token_depends_on_no_later_one(stack: Blocks, moe: Moe, b: int, t: int) -> None:
    """In E without dropping, a token's output depends only on that token; if experts are full, it never depends on a
    later token.

    Routing that compares tokens (expert choice, slots for the largest gates) lets later tokens decide about earlier
    ones, so evaluation differs from training.
    """
    call = replace(expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), 2, 7), dy=None)
    x_BTD = numerics.tensor(call.x)
    x_BTD[b, t] = fixtures.normal("other", (24,)) * 3
    one, other = stack.run_block(call).y, stack.run_block(replace(call, x=numerics.array(x_BTD))).y
    y_ND, changed_ND = numerics.tensor(one).flatten(0, 1), numerics.tensor(other).flatten(0, 1)
    n = b * 7 + t
    words = numerics.difference("y before it", changed_ND[:n], y_ND[:n], FLOAT64)
    if moe.capacity_factor is None:
        words = words or numerics.difference("y after it", changed_ND[n + 1 :], y_ND[n + 1 :], FLOAT64)
    assert not words, f"after a change of token ({b}, {t}) {words}"
