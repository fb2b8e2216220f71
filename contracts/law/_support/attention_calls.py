"""Calls through an attention block, and what its definition gives for them."""

from dataclasses import replace

from contracts.instruments import fixtures, numerics, oracles
from contracts.law._support.late import torch
from contracts.law._support.recipes import A_LAYER, SMALL, SMALL_DSA
from contracts.spec import FLOAT32, FLOAT64, Array, Arrays, BlockCall, BlockRun, Blocks, Dsa, Element, Recipe, Tolerance

Lengths = tuple[tuple[int, ...], ...]
"""The lengths of the documents in each row: ((5, 1, 4), (2, 8)) are two rows of ten tokens."""

ROWS: Lengths = ((9,), (9,))
PACKED: Lengths = ((5, 1, 4), (2, 8))
MQA, MHA, BARE = replace(SMALL, kv_groups=1), replace(SMALL, kv_groups=4), replace(SMALL, qk_norm=False)
TOLERANCES: dict[Element, Tolerance] = {"float64": FLOAT64, "float32": FLOAT32}


def call_of(
    stack: Blocks, recipe: Recipe, lengths: Lengths, *,
    layer: int = A_LAYER, dtype: Element = "float64", backward: bool = True, seed: int = 0,
) -> BlockCall:  # fmt: skip
    """A call with drawn weights, x and dy; documents are numbered where a row holds more than one."""
    element: torch.dtype = getattr(torch, dtype)
    shape = (len(lengths), sum(lengths[0]), recipe.hidden)
    recipe = replace(recipe, seq_length=max(recipe.seq_length, shape[1]))  # stacks may build tables of that length
    weights = fixtures.weights(stack.block_weights(recipe, layer, "nemo_native"), seed=seed)
    x_BTD, dy_BTD = (fixtures.normal(name, shape, seed=seed).to(element) for name in ("x", "dy"))
    packed = any(len(row) > 1 for row in lengths)
    return BlockCall(
        recipe=recipe,
        layer=layer,
        weights=fixtures.as_arrays(weights, element),
        x=numerics.array(x_BTD),
        dy=numerics.array(dy_BTD) if backward else None,
        documents=numerics.array(fixtures.documents(lengths)) if packed else None,
    )


def with_weights(call: BlockCall, changed: Arrays) -> Arrays:
    """The weights of a call, with some of them replaced."""
    return {**call.weights, **changed}


def slice_of(value: Array, *index: slice | int) -> Array:
    """A slice of a tensor, as a value."""
    return numerics.array(numerics.tensor(value)[index])


def oracle_difference(call: BlockCall, run: BlockRun, tolerance: Tolerance) -> str:
    """How a run differs from the definition: the output first, then every gradient; empty if it does not.

    Weights that the definition does not use (an indexer's) must have no gradient, or a gradient of zeros.
    """
    oracle = oracles.attention
    weights = {name: each.requires_grad_() for name, each in numerics.tensors(call.weights, torch.float64).items()}
    x_BTD = numerics.tensor(call.x, torch.float64).requires_grad_()
    documents = [None] * len(x_BTD) if call.documents is None else list(numerics.tensor(call.documents))
    rows = []
    for b, (x_TD, documents_T) in enumerate(zip(x_BTD, documents, strict=True)):
        if call.recipe.mla is None:
            rows.append(oracle.grouped(call.recipe, weights, x_TD, documents_T))
            continue
        chosen = numerics.tensor(run.seen["selected"])[b] if "selected" in run.seen else None
        rows.append(oracle.latent(call.recipe, weights, x_TD, documents_T, selected_TS=chosen))
    y_BTD = torch.stack(rows)
    found = numerics.difference("y", run.y, y_BTD.detach(), tolerance)
    if found or call.dy is None:
        return found
    leaves = {**weights, "x": x_BTD}
    objective = (y_BTD * numerics.tensor(call.dy, torch.float64)).sum()
    gradients = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
    want = {name: each for name, each in zip(leaves, gradients, strict=True) if each is not None}
    idle = [name for name in leaves if name not in want and name in run.gradients]
    for name in idle:
        if bool(numerics.tensor(run.gradients[name]).any()):
            return f"{name} has a gradient, though it takes part only in a choice"
    got = {name: each for name, each in run.gradients.items() if name not in idle}
    return numerics.gradient_differences("gradient", got, want, tolerance)


def sparse_recipe(top_k: int, a_ranks: tuple[int, ...] = (0, 2)) -> Recipe:
    """The small recipe with sparse attention over k keys on some A-ranks."""
    return replace(SMALL_DSA, dsa=Dsa(a_ranks=a_ranks, index_heads=5, index_head_dim=8, top_k=top_k))
