"""Hyper-connections (mHC): how residual streams are read, written and mixed, by arXiv 2512.24880.

spec/blocks.py lists the weight names of a whole model.
"""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.late import torch
from contracts.law._support.model_passes import (
    AHEAD,
    PACKED,
    STREAMED,
    batch,
    drawn_weights,
    needs_canonical_names,
    one_pass,
    oracle_difference,
    tensor,
)
from contracts.spec import FLOAT64, Mhc, Recipe, Training, chosen

_FIRST = "layers.0.streams.bias"

DEFINED = {  # recipe, letters
    "three-streams": (replace(STREAMED, depth=4), "AAEA"),
    "two-streams": (replace(STREAMED, mhc=Mhc(streams=2), depth=3, activation="swiglu"), "AAE"),
    "under-prediction-heads": (replace(AHEAD, pattern="A", depth=3, mhc=Mhc(streams=4)), "AAA"),
    "wide-eps": (replace(STREAMED, depth=2, norm_eps=0.1), "AA"),
}


@contract("BLK-06m", asks=("initial", "run_model"), cases=DEFINED, conventions=("prediction-input",),
          source="naming; arXiv 2512.24880 section 4")  # fmt: skip
def streams_follow_their_definition(stack: Training, recipe: Recipe, letters: str) -> None:
    """With hyper-connections a layer is S' = H_res S + h_post · branch(h_pre S), where h_pre is a sigmoid, h_post is
    twice a sigmoid and H_res is Sinkhorn's doubly stochastic matrix, each computed from the token's own streams.

    The check compares logits and every gradient with the sum written out. H_res is not symmetric: H_res[i, j] carries
    stream j to stream i. Its transpose is doubly stochastic too, and also trains.
    """
    weights = drawn_weights(stack, recipe)
    needs_canonical_names(stack, weights, _FIRST)
    for name in [name for name in weights if name.endswith(".alpha")]:  # so that Sinkhorn's 20 rounds reach its limit
        weights[name] = numerics.array(tensor(weights[name]) / 8)
    words = oracle_difference(stack, recipe, letters, weights, reads=chosen(stack, "prediction-input"))
    assert not words, words


CONSERVED = {  # h_post of each stream, which sum to the number of streams; how far apart the logits of H_res lie
    "three-streams": (STREAMED, (0.4, 1.0, 1.6), 5),
    "four-streams": (replace(STREAMED, mhc=Mhc(streams=4), depth=6), (1.9, 0.1, 0.7, 1.3), 5),
    "every-stream-alike": (STREAMED, (1.0, 1.0, 1.0), 5),
    "saturated": (STREAMED, (0.4, 1.0, 1.6), 5000),
}


@contract("BLK-06n", asks=("initial", "run_model"), cases=CONSERVED, source="arXiv 2512.24880 section 4.1")
def mixing_keeps_the_mean_of_the_streams(
    stack: Training, recipe: Recipe, writes: tuple[float, ...], apart: float
) -> None:
    """A layer that reads the mean of the streams and whose h_post averages 1 equals a plain residual layer for every
    H_res, because the columns of H_res sum to 1.

    If columns do not sum to 1, the residual of a deep model fades or grows with depth. Rows that sum to 1 are not
    enough. If logits lie far apart, exp overflows, or leaves a column of nothing but zeros.
    """
    weights = drawn_weights(stack, recipe)
    needs_canonical_names(stack, weights, _FIRST)
    n = len(writes)
    reading = -math.log(n - 1)
    for name in [name for name in weights if ".streams." in name]:
        held = tensor(weights[name])
        if name.endswith(".bias"):
            writing = torch.tensor([math.log(each / (2 - each)) for each in writes], dtype=torch.float64)
            held = torch.cat((torch.full((n,), reading, dtype=torch.float64), writing, held[2 * n :] * apart))
        weights[name] = numerics.array(held if name.endswith(".bias") else torch.zeros_like(held))
    tokens = batch(recipe)
    with_streams = one_pass(stack, recipe, weights, tokens)
    plain = {name: each for name, each in weights.items() if ".streams." not in name}
    without = one_pass(stack, replace(recipe, mhc=None), plain, tokens)
    words = numerics.difference("the logits of a plain residual", with_streams.logits, without.logits, FLOAT64)
    assert not words, words


ORDERS = {"three-streams": (STREAMED, (2, 0, 1)), "two-streams": (replace(STREAMED, mhc=Mhc(streams=2)), (1, 0))}


@contract("BLK-06o", asks=("initial", "run_model"), cases=ORDERS, source="arXiv 2512.24880 section 4")
def streams_have_no_order(stack: Training, recipe: Recipe, order: tuple[int, ...]) -> None:
    """Permuting the streams in every map changes no logit, because all streams start equal and the model ends with
    their mean.
    """
    weights = drawn_weights(stack, recipe)
    needs_canonical_names(stack, weights, _FIRST)
    tokens = batch(recipe, PACKED)
    before = one_pass(stack, recipe, weights, tokens)
    n = len(order)
    places = torch.tensor(order)
    rows = torch.cat((places, n + places, 2 * n + (places[:, None] * n + places[None, :]).flatten()))
    for name in [name for name in weights if ".streams." in name and not name.endswith(".alpha")]:
        held = tensor(weights[name])[rows]
        if name.endswith(".phi.weight"):
            held = held.view(-1, n, recipe.hidden)[:, places].flatten(1)
        weights[name] = numerics.array(held)
    after = one_pass(stack, recipe, weights, tokens)
    words = numerics.difference("the logits with permuted streams", after.logits, before.logits, FLOAT64)
    assert not words, words


HALVED = {
    "one-layer": (replace(STREAMED, depth=1, dtype="bf16"),),
    "two-layers": (replace(STREAMED, depth=2, dtype="bf16"),),
}
LARGE, HALF_OFF = 20.0, 0.012
"""What a map's logit adds up from, and how far bfloat16 may move the model's logits: 0.005 is seen, 0.03 with maps in
bfloat16, whose units near 80 are 0.5."""


@contract("BLK-06w", asks=("initial", "run_model"), cases=HALVED, float32=False, source="arXiv 2512.24880; MXP-07")
def maps_of_streams_are_float32(stack: Training, recipe: Recipe) -> None:
    """Under bfloat16 activations the maps of hyper-connections are computed in float32: the norm of the streams, their
    projection and its bias.

    A map's logit is a projection plus a bias. The weights are drawn so that both are large and nearly cancel: what
    rounds the norm or the projection to bfloat16 then writes another part of the layer into each stream.
    """
    exact = replace(recipe, dtype="fp32")
    weights = drawn_weights(stack, exact)
    needs_canonical_names(stack, weights, _FIRST)
    held = {name: numerics.tensor(each).bfloat16().double() for name, each in weights.items()}
    first = "layers.0.streams."
    embedding_VD, phi, bias, alpha = (
        held[name] for name in ("embedding.weight", f"{first}phi.weight", f"{first}bias", f"{first}alpha")
    )
    embedding_VD[:, 0] = 2.0
    normed_V = embedding_VD[:, 0] / (embedding_VD.square().mean(-1) + recipe.norm_eps).sqrt()
    phi.mul_(0.1)[:, 0] = LARGE
    bias.mul_(0.1).sub_(LARGE * normed_V.mean())
    alpha.fill_(1.0)
    weights, tokens = dict(numerics.arrays(held)), batch(recipe, PACKED)
    want = tensor(one_pass(stack, exact, weights, tokens).logits)
    got = tensor(one_pass(stack, recipe, weights, tokens, precision="declared").logits)
    off = float((got.double() - want).norm() / want.norm())
    assert off < HALF_OFF, f"logits under bfloat16 are off by {off:.3g} of their size, expected less than {HALF_OFF}"
