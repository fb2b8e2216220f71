"""Steps whose tokens have gradients that only their dropout masks tell apart."""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.law._support.recipes import SMALL
from contracts.law._support.training_run import drawn_weights, table
from contracts.spec import Batch, Execution, Moe, Optim, Recipe, Session, Tokens, Training

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
    import torch

    numerics = instruments.numerics
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
