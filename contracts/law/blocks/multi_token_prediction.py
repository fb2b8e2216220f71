"""Multi-token prediction: which token a depth sees, which label it predicts, and which weights it trains.

Depths count from 1: at position t, depth k predicts the label of position t + k. arXiv 2412.19437, section 2.2.
"""

from dataclasses import replace
from typing import Any

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support.model_passes import (
    AHEAD,
    PACKED,
    SHORT,
    WHOLE,
    Lengths,
    batch,
    drawn_weights,
    needs_canonical_names,
    not_changed_from,
    one_pass,
    oracle_difference,
    tensor,
)
from contracts.spec import FLOAT64, FLOAT64_SCAN, Mla, Mtp, Recipe, Training, chosen, within

ROWS: Lengths = ((7,), (7,))
DEFINED = {  # recipe, letters, documents of each row
    "two-depths": (AHEAD, "EA", SHORT),
    "latent-attention-swiglu": (
        replace(AHEAD, depth=1, activation="swiglu", mla=Mla(q_lora=12, kv_lora=10, qk_head=6, qk_rope=4, v_head=8)),
        "E",
        ROWS,
    ),
    "tied-embeddings": (replace(AHEAD, depth=1, untied_embeddings=False, mtp=Mtp(depth=2, loss_weight=0.5)), "E", ROWS),
    "wide-eps": (replace(AHEAD, depth=1, norm_eps=0.1, mtp=Mtp(depth=1, loss_weight=0.5)), "E", ROWS),
}


@contract("BLK-06p", asks=("initial", "run_model"), cases=DEFINED, conventions=("prediction-input",),
          source="naming; arXiv 2412.19437 section 2.2")  # fmt: skip
def a_depth_joins_the_state_below_with_the_token_ahead(
    stack: Training, recipe: Recipe, letters: str, lengths: Lengths
) -> None:
    """Prediction depth k is projection [RMSNorm(h); RMSNorm(E[token t + k])], an attention, an MLP, a norm and the
    model's own output projection. h is the residual stream before the final norm, or the output of the depth below; if
    the stack declares so, h is taken after the norm.

    The check compares the logits of every depth and the gradient of every weight with the sum written out. All depths
    share the embedding and the output projection, so those gradients are sums over depths. If a document has no
    token t + k, no label is predicted and no logits are compared.
    """
    weights = drawn_weights(stack, recipe)
    needs_canonical_names(stack, weights, "mtp.0.projection.weight")
    words = oracle_difference(stack, recipe, letters, weights, lengths, reads=chosen(stack, "prediction-input"))
    assert not words, words


HELD: dict[str, tuple[Any, ...]] = {  # recipe, documents of each row, whether the last position has a label too
    "packed": (AHEAD, PACKED),
    "one-document-a-row": (AHEAD, ((9,), (9,))),
    "three-depths": (replace(AHEAD, mtp=Mtp(depth=3, loss_weight=0.2)), PACKED),
    "documents-shorter-than-the-depth": (replace(AHEAD, mtp=Mtp(depth=2, loss_weight=1.0)), ((1, 2, 1, 3), (1, 6))),
    "rows-shorter-than-the-depth": (replace(AHEAD, mtp=Mtp(depth=4, loss_weight=0.5)), ((2,), (2,)), True),
    "rows-of-one-token": (replace(AHEAD, mtp=Mtp(depth=2, loss_weight=0.5)), ((1,), (1,)), True),
}


@contract("BLK-06q", asks=("initial", "run_model"), cases=HELD, source="arXiv 2412.19437 eq. 24-25; DPS-24")
def a_depth_is_held_to_the_labels_of_its_own_distance(
    stack: Training, recipe: Recipe, lengths: Lengths, to_the_end: bool = False
) -> None:
    """Prediction depth k is trained on the label k positions later, never on one of another document or past the end of
    the row, and averages over its own labels; the recipe's weight multiplies the mean over depths.

    Rolled labels bring the first tokens of a row to its end. Dividing by the label count of the main head makes the
    loss too small, because every document loses labels at its end. A depth that looks past the end of every row has no
    label at all: its loss is 0, and its gradient finite.
    """
    assert recipe.mtp is not None
    tokens = batch(recipe, lengths)
    if to_the_end:
        tokens = replace(tokens, labels=numerics.array((tensor(tokens.tokens) + 1) % recipe.vocab))
    run = one_pass(stack, recipe, drawn_weights(stack, recipe), tokens, backward=to_the_end)
    lost = [name for name, each in run.gradients.items() if not bool(tensor(each).isfinite().all())]
    assert not lost, f"the gradient of {lost[0]} is not finite where depths have no label"
    oracle = oracles.model
    found = len(run.mtp_logits)
    assert found == recipe.mtp.depth, f"{found} depths give logits, expected {recipe.mtp.depth}"
    losses = []
    for depth, logits in enumerate(run.mtp_logits, start=1):
        labels = oracle.later_labels(tensor(tokens.labels), tensor(tokens.documents), depth)
        losses.append(float(oracle.mean_loss(tensor(logits), labels)))
    want, got = sum(losses) / len(losses), run.losses.get("mtp", 0.0)
    by_depth = ", ".join(f"{loss:.6f}" for loss in losses)
    assert abs(got - want) <= within(FLOAT64.bound) * abs(want), (
        f"mtp loss is {got:.6f}, expected the mean of {by_depth}"
    )
    share = run.losses["total"] - sum(run.losses[name] for name in ("lm",))
    weighed = recipe.mtp.loss_weight * want
    alike = abs(share - weighed) <= within(1e-11)
    assert alike, f"total holds {share:.6f} of the mtp loss, expected {recipe.mtp.loss_weight} of {want:.6f}"


TRAINED = {
    "untied": (AHEAD,),
    "a-whole-model": (replace(WHOLE, mtp=Mtp(depth=1)),),
    "tied": (replace(AHEAD, untied_embeddings=False),),
}


@contract("BLK-06r", asks=("built", "initial", "run_model"), cases=TRAINED, source="arXiv 2412.19437 section 2.2")
def depths_train_the_model_below_them(stack: Training, recipe: Recipe) -> None:
    """The multi-token prediction loss trains the embedding, the output projection and every layer: their gradient is
    that of the main loss plus the loss weight times that of the depths.

    Over loss weights 0, 0.25 and 0.5 the gradient lies on a line that is not flat. With detached hidden states the
    depths train nothing below them. A copy of the output projection drifts from the one that is served.
    """
    weights, tokens = drawn_weights(stack, recipe), batch(recipe)
    none, some, more = (
        numerics.tensors(one_pass(stack, _weighed(recipe, by), weights, tokens, backward=True).gradients)
        for by in (0.0, 0.25, 0.5)
    )
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.layer is None and row.role not in ("embedding", "head"):
            continue
        assert row.name in some, f"{row.name} gets no gradient"
        step = some[row.name] - none[row.name]
        assert bool(step.any()), f"{row.name} gets no gradient from the depths"
        what = f"what a quarter more of the depths adds to the gradient of {row.name}"
        # the difference of two large gradients is known only to their rounding
        scale = numerics.typical_size(more[row.name])
        words = numerics.difference(what, more[row.name] - some[row.name], step, FLOAT64_SCAN, scale=scale)
        assert not words, words


def _weighed(recipe: Recipe, weight: float) -> Recipe:
    assert recipe.mtp is not None
    return replace(recipe, mtp=replace(recipe.mtp, loss_weight=weight))


SEEN = {  # position whose token changes, in a row of one document: depth k may change from position - k on
    "in-the-middle": (9, 13),
    "the-second": (1, 13),
    "the-last": (12, 13),
}


@contract("BLK-06u", asks=("initial", "run_model"), cases=SEEN, source="arXiv 2412.19437 eq. 21")
def a_depth_sees_exactly_one_token_further(stack: Training, place: int, length: int) -> None:
    """Replacing the token at t changes the logits of prediction depth k from position t - k on, and none before.

    One position earlier, the head reads its own answer; one later, it lacks a token that it should see.
    """
    recipe = AHEAD
    tokens = batch(recipe, ((length,), (length,)))
    weights = drawn_weights(stack, recipe)
    changed = tensor(tokens.tokens)
    changed[0, place] = (changed[0, place] + 1) % recipe.vocab
    array = numerics.array
    before = one_pass(stack, recipe, weights, tokens).mtp_logits
    after = one_pass(stack, recipe, weights, replace(tokens, tokens=array(changed))).mtp_logits
    for depth, (one, other) in enumerate(zip(before, after, strict=True), start=1):
        first = max(place - depth, 0)
        words = not_changed_from(one, other, first)
        assert not words, f"depth {depth}, token {place} changed: {words}"
