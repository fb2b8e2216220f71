"""Multi-latent attention against its definition, and its absorbed form against the form that writes out keys."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.attention_calls import (
    PACKED,
    ROWS,
    TOLERANCES,
    Lengths,
    call_of,
    oracle_difference,
    sparse_recipe,
)
from contracts.law._support.recipes import A_LAYER, SMALL_DSA, SMALL_MLA
from contracts.spec import FLOAT64, Blocks, Element, Recipe

_ASKS = ("block_weights", "run_block")

LATENT: dict[str, tuple[Recipe, Lengths, Element]] = {
    "one-document": (SMALL_MLA, ROWS, "float64"),
    "packed": (SMALL_MLA, PACKED, "float64"),
    "theta-100": (replace(SMALL_MLA, rope_theta=100), ROWS, "float64"),
    "wide-eps": (replace(SMALL_MLA, norm_eps=0.1), PACKED, "float64"),
    "3-heads-of-8": (replace(SMALL_MLA, heads=3, kv_groups=1), ((7,), (7,)), "float64"),
    "a-layer-beside-sparse-ones": (SMALL_DSA, PACKED, "float64"),  # layer 4 is A-rank 1
    "float32": (SMALL_MLA, PACKED, "float32"),
}


@contract("BLK-03b", asks=_ASKS, cases=LATENT, source="naming hub")
def latent_attention_is_its_definition(stack: Blocks, recipe: Recipe, lengths: Lengths, dtype: Element) -> None:
    """Multi-latent attention has the outputs and every gradient of its definition, with keys and values written out.

    All heads share the rope part of a key. The latent's norm excludes that part, and the softmax scale includes it.
    """
    layer = A_LAYER if recipe.dsa is None else 4
    call = call_of(stack, recipe, lengths, layer=layer, dtype=dtype)
    run = stack.run_block(call)
    assert "selected" not in run.seen, f"layer {layer} selects keys, and only A-ranks 0 and 2 are sparse"
    words = oracle_difference(call, run, TOLERANCES[dtype])
    assert not words, words


DENSE = {
    "k-is-T": (9, ROWS),
    "k-above-T": (256, ROWS),
    "packed-k-is-the-longest": (8, PACKED),
}


@contract("BLK-06c", asks=_ASKS, cases=DENSE, source="naming bringup")
def selecting_every_key_is_dense_attention(stack: Blocks, top_k: int, lengths: Lengths) -> None:
    """If k is at least the length of every document, a sparse block has the outputs and gradients of dense MLA.

    Sparse layers often attend over the latent itself (absorbed), dense layers over written-out keys and values. Here
    the two forms must agree.
    """
    call = call_of(stack, sparse_recipe(top_k), lengths)
    dense_names = {name for name in call.weights if "indexer" not in name}
    dense_weights = {name: call.weights[name] for name in dense_names}
    sparse = stack.run_block(call)
    dense = stack.run_block(replace(call, recipe=replace(call.recipe, dsa=None), weights=dense_weights))
    words = numerics.difference("y", sparse.y, dense.y, FLOAT64)
    assert not words, f"sparse against dense, {words}"
    got = {name: each for name, each in sparse.gradients.items() if "indexer" not in name}
    words = numerics.gradient_differences("gradient", got, dense.gradients, FLOAT64)
    assert not words, f"sparse against dense, {words}"
