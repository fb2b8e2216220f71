"""Steps whose tokens have gradients that only their dropout masks tell apart."""

from dataclasses import replace

from contracts.instruments import numerics
from contracts.law._support.late import Tensor, torch
from contracts.law._support.model_passes import needs_canonical_names
from contracts.law._support.recipes import SMALL
from contracts.law._support.training_run import Rows, batches, drawn_weights, seed_generators, table
from contracts.spec import (
    FLOAT64,
    Batch,
    Execution,
    Moe,
    NotOffered,
    Optim,
    Recipe,
    Session,
    Tokens,
    Training,
    within,
)

DROPPED = replace(
    SMALL, name="dropped", pattern="E", depth=2, moe=None, dropout=0.4, vocab=64, seq_length=8,
    optim=Optim(lr=1e-30, min_lr=1e-30, warmup=1, steps=8, schedule="constant", weight_decay=0.0, clip=1e6),
    batch=Batch(micro=1, total=4),
)  # fmt: skip
"""MLPs, which see one token each, and a rate that moves no weight."""
ROUTED = replace(DROPPED, name="dropped-experts", moe=Moe(experts=4, top_k=2, expert_hidden=20))
LEAST = 1e-6  # how much of its largest element a gradient differs where a single element was dropped elsewhere


def equal_masks(stack: Training, recipe: Recipe, execution: Execution) -> str:
    """Which two of 32 tokens, or of two steps, got the same mask; empty if none did.

    Each token has an id of its own, all ids one embedding and all labels one class, so that gradients of the embedding
    are equal exactly if masks are.
    """
    weights = numerics.tensors(drawn_weights(table(stack, recipe)))
    weights["embedding.weight"] = weights["embedding.weight"][:1].expand(recipe.vocab, -1).contiguous()
    ids_BT = torch.arange(4 * recipe.seq_length).view(4, -1)
    tokens = Tokens(tokens=numerics.array(ids_BT), labels=numerics.array(torch.full_like(ids_BT, recipe.vocab - 1)))
    asked = Session(
        recipe=recipe, steps=2, execution=execution, batches=(tokens, tokens), weights=numerics.arrays(weights),
        observe=frozenset({"gradients"}), at=frozenset({1, 2}),
    )  # fmt: skip
    found = [numerics.tensor(step.gradients["embedding.weight"])[: ids_BT.numel()] for step in stack.train(asked).steps]
    rows = torch.cat(found)
    apart = torch.cdist(rows, rows, p=torch.inf) + torch.eye(len(rows)) * rows.abs().max()
    closest, other = divmod(int(apart.argmin()), len(rows))
    if apart.min() > LEAST * rows.abs().max():
        return ""
    (one, first), (two, second) = (divmod(each, ids_BT.numel()) for each in sorted((closest, other)))
    return f"token {first} of step {one + 1} and token {second} of step {two + 1} have the same gradient"


DEEP = replace(DROPPED, name="dropped-deep", depth=4)
"""Four layers, so that each of two stages has two."""


def kept_elements(stack: Training, asked: Session) -> dict[str, Tensor]:
    """By step and layer, of one token, which elements of what the layer added were kept: (D) bool.

    A single label of the batch counts, and MLPs see one token each: of what writes to the stream, a row has a gradient
    only if its element of that token was kept.
    """
    ids_BT = torch.arange(4 * asked.recipe.seq_length).view(4, -1)
    labels_BT = torch.full_like(ids_BT, -100)
    labels_BT[1, 3] = 5
    tokens = Tokens(tokens=numerics.array(ids_BT), labels=numerics.array(labels_BT))
    weights = {} if asked.load else drawn_weights(table(stack, asked.recipe))
    asked = replace(asked, batches=(tokens,) * asked.steps, weights=weights, observe=frozenset({"gradients"}))
    found = {}
    for step in stack.train(asked).steps:
        needs_canonical_names(stack, step.gradients, "layers.0.mixer.w2.weight")
        for layer in range(asked.recipe.depth):
            row_DF = numerics.tensor(step.gradients[f"layers.{layer}.mixer.w2.weight"])
            found[f"layer {layer} in step {step.number}"] = row_DF.any(1)
    return found


EIGHT: Rows = (((8,), 3), ((8,), 0), ((8,), 6), ((8,), 1))


def recomputed_difference(stack: Training, recipe: Recipe, execution: Execution) -> str:
    """How two steps with recomputed layers differ from two without, in words.

    Raises:
        NotOffered: if two runs without have other masks.
    """
    asked = Session(
        recipe=recipe, steps=2, batches=batches(2, "dropped", recipe.vocab, EIGHT),
        weights=drawn_weights(table(stack, recipe)), observe=frozenset({"gradients"}),
    )  # fmt: skip
    taken = []
    for recompute in (False, False, True):
        seed_generators(7)
        taken.append(stack.train(replace(asked, execution=replace(execution, recompute=recompute))).steps)
    plain, again, found = taken
    if any(one.losses != two.losses for one, two in zip(plain, again, strict=True)):
        raise NotOffered("its masks are others in each run", "case")
    for got, want in zip(found, plain, strict=True):
        lm, due = got.losses["lm"], want.losses["lm"]
        words = f"lm is {lm:.9g}, otherwise {due:.9g}" if abs(lm - due) > within(1e-9) * due else ""
        words = words or numerics.gradient_differences("the gradient of", got.gradients, want.gradients, FLOAT64)
        if words:
            return f"recomputed, {words} (step {got.number})"
    return ""
