"""Rope and QK norm: the angle of a pair, positions in packed rows, a norm per head, precision far out."""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support.attention_calls import BARE, PACKED, Lengths, call_of, slice_of, with_weights
from contracts.law._support.late import Tensor, torch
from contracts.law._support.recipes import SMALL, SMALL_DSA, SMALL_MLA
from contracts.spec import FLOAT32, FLOAT64, Array, BlockCall, Blocks, Recipe, chosen, within

_ASKS = ("block_weights", "run_block")

# Four elements rotate as pairs (0, 2) and (1, 3), by 1 and by theta^-1/2 a token. Query and key have one element each:
# theta, distance in tokens, (element of the query, element of the key) → their product; all other products are 0.
ANGLES = {
    "theta-10000-next": (10_000, 1, {
        (0, 0): 0.5403023058681398, (2, 2): 0.5403023058681398,  # cos 1
        (0, 2): 0.8414709848078965, (2, 0): -0.8414709848078965,  # sin 1
        (1, 1): 0.9999500004166653, (3, 3): 0.9999500004166653,  # cos 0.01
        (1, 3): 0.009999833334166664, (3, 1): -0.009999833334166664,  # sin 0.01
    }),
    "theta-100-five-on": (100, 5, {
        (0, 0): 0.28366218546322625, (2, 2): 0.28366218546322625,  # cos 5
        (0, 2): -0.9589242746631385, (2, 0): 0.9589242746631385,  # sin 5
        (1, 1): 0.8775825618903728, (3, 3): 0.8775825618903728,  # cos 0.5
        (1, 3): 0.479425538604203, (3, 1): -0.479425538604203,  # sin 0.5
    }),
}  # fmt: skip


@contract("BLK-03g", asks=_ASKS, cases=ANGLES, source="naming hub")
def rope_turns_each_pair_by_its_own_angle(
    stack: Blocks, theta: int, apart: int, products: dict[tuple[int, int], float]
) -> None:
    """Rope rotates elements j and j + d/2 by theta^(-2j/d) per token, so a score depends only on the distance.

    The check computes the score from the output. Only one key has a value, so the output is its weight w; against n
    keys of score 0 its score is log(w n / (1 - w)).
    """
    recipe = replace(BARE, hidden=8, heads=2, kv_groups=1, rope_theta=theta, norm_eps=1e-30)
    for query in range(4):
        for key in range(4):
            y = stack.run_block(_one_pair(stack, recipe, query, key, apart)).y
            weight = float(numerics.tensor(y)[0, -1, 0])
            assert 0 < weight < 1, f"the key's weight is {weight:.6g}"
            score, want = math.log(weight * apart / (1 - weight)), products.get((query, key), 0.0)
            words = f"element {query} of a query and {key} of a key {apart} tokens before it"
            assert abs(score - want) < within(1e-12), (
                f"{words} have product {score:.9g}, expected {want:.9g} (theta {theta})"
            )


def _one_pair(stack: Blocks, recipe: Recipe, query: int, key: int, apart: int) -> BlockCall:
    """Token 0 has the key and a value of 1, the last token has the query, and tokens between have keys of zero."""
    x_BTD = torch.zeros(1, apart + 1, 8, dtype=torch.float64)
    x_BTD[0, 0, 0] = x_BTD[0, -1, 1] = 1.0
    x_BTD[0, 1:-1, 7] = 1.0
    shapes = stack.block_weights(recipe, 0, "nemo_native")
    weights = {name: torch.zeros(shape.shape, dtype=torch.float64) for name, shape in shapes.items()}
    weights["norm.weight"] += 8**-0.5  # undoes the norm of a vector with a single 1
    weights["mixer.wq.weight"][query, 1] = 2.0  # the root of d, against the scale
    weights["mixer.wk.weight"][key, 0] = 1.0
    weights["mixer.wv.weight"][0, 0] = weights["mixer.wo.weight"][0, 0] = 1.0
    return BlockCall(recipe=recipe, layer=0, weights=numerics.arrays(weights), x=numerics.array(x_BTD))


PLACES = {
    "gqa": (SMALL, PACKED),
    "without-qk-norm": (BARE, PACKED),
    "mla": (SMALL_MLA, PACKED),
    "dsa": (SMALL_DSA, PACKED),
    "theta-7": (replace(SMALL, rope_theta=7), ((1, 9), (6, 4))),
}


@contract("BLK-03h", asks=_ASKS, cases=PLACES, source="naming F06")
def a_document_is_the_same_wherever_it_stands(stack: Blocks, recipe: Recipe, lengths: Lengths) -> None:
    """A document has the same attention outputs and gradients anywhere in a packed row as in a row of its own.

    Attention depends on distances, so the start of a document does not matter. The documents' gradients of a weight sum
    to its gradient in the packed batch.
    """
    call = call_of(stack, recipe, lengths)
    assert call.dy is not None
    whole = stack.run_block(call)
    total = {name: 0 * numerics.tensor(each) for name, each in whole.gradients.items() if name != "x"}
    for row, documents in enumerate(lengths):
        start = 0
        for number, length in enumerate(documents):
            where = (slice(row, row + 1), slice(start, start + length))
            start += length
            alone = replace(call, x=slice_of(call.x, *where), dy=slice_of(call.dy, *where), documents=None)
            run = stack.run_block(alone)
            pairs = (("y", whole.y, run.y), ("the gradient of x", whole.gradients["x"], run.gradients["x"]))
            for what, one, two in pairs:
                words = numerics.difference(
                    f"{what} of document {number} of row {row}", slice_of(one, *where), two, FLOAT64
                )
                assert not words, f"packed against by itself, {words}"
            for name in total:
                total[name] += numerics.tensor(run.gradients[name])
    found = {name: whole.gradients[name] for name in total}
    words = numerics.gradient_differences("packed against the sum over documents, gradient", found, total, FLOAT64)
    assert not words, words


NORMED = {  # matrix, rows of it, factor on them
    "second-query-head": ("mixer.wq.weight", slice(6, 12), 7.0),
    "last-query-head": ("mixer.wq.weight", slice(18, 24), 0.05),
    "second-key-head": ("mixer.wk.weight", slice(6, 12), 30.0),
    "every-query-head": ("mixer.wq.weight", slice(0, 24), 0.3),
}


@contract("BLK-03i", asks=_ASKS, cases=NORMED, source="naming hub")
def qk_norm_takes_the_length_of_each_head(stack: Blocks, name: str, rows: slice, factor: float) -> None:
    """With QK norm, scaling one head's queries or keys changes no output of attention; without it, outputs change.

    QK norm is computed per head: in one norm over all heads, a loud head quietens its neighbours.
    """
    for qk_norm in (True, False):
        recipe = replace(SMALL, qk_norm=qk_norm, norm_eps=1e-30)  # so small that it does not count in a norm
        call = call_of(stack, recipe, PACKED, backward=False)
        weight = numerics.tensor(call.weights[name])
        weight[rows] *= factor
        loud = replace(call, weights=with_weights(call, {name: numerics.array(weight)}))
        words = numerics.difference("y", stack.run_block(loud).y, stack.run_block(call).y, FLOAT64)
        what = f"rows {rows.start} … {rows.stop - 1} of {name} times {factor:g}"
        if qk_norm:
            assert not words, f"{what}, with qk_norm: {words}"
        else:
            assert words, f"{what}, without qk_norm: y is the same as before, as if it were normed"


FAR = {"1027-tokens": (1027, 500_000), "1027-tokens-theta-10": (1027, 10), "4099-tokens": (4099, 500_000)}


@contract("BLK-03j", asks=_ASKS, cases=FAR, source="hub naming", conventions=("rope-angles",))
def far_positions_are_as_precise_as_near_ones(stack: Blocks, length: int, theta: int) -> None:
    """In float32 the last tokens of a document of 1027, or of 4099, match the definition of attention as closely as the
    first.

    An angle in float32 is off by up to position · 2^-24: 6e-5 at 1027 and 4e-3 at 65 536, against a tolerance of 2e-6.
    The pair that turns by 1 per token is exact all the same, so a small theta shows more. From 257 on, a position in
    bfloat16 equals another token's. A table of angles that was made for 2048 or 4096 tokens begins anew. A stack that
    declares float32 angles must have just those.
    """
    oracle = oracles.attention
    recipe = replace(SMALL, hidden=16, heads=2, kv_groups=1, rope_theta=theta)
    call = call_of(stack, recipe, ((length,),), dtype="float32", backward=False)
    last = range(length - 3, length)
    weights = numerics.tensors(call.weights, torch.float64)
    angles = oracle.float32_angles if chosen(stack, "rope-angles") == "float32" else oracle.angles
    want = oracle.grouped(recipe, weights, numerics.tensor(call.x, torch.float64)[0], rows=last, angles=angles)
    got: Array = slice_of(stack.run_block(call).y, 0, slice(length - 3, length))
    words = numerics.difference("y of the last three tokens", got, want, FLOAT32)
    assert not words, words


# the element of the key at which all queries of a row look
TURNS = {"cosines": 0, "sines": 2}
HEADS, LOUD = 64, 4.0


@contract("BLK-03m", asks=_ASKS, cases=TURNS, source="hub; torchtitan #2575", conventions=("rope-turns",))
def rope_turns_by_cosines_of_float32(stack: Blocks, element: int) -> None:
    """Under bfloat16, rope multiplies by cosines and sines of float32, or by rounded ones if that is declared.

    A turned query is rounded itself, as much as a rounded cosine would be off. Over 64 heads with queries of other
    lengths its roundings cancel out, and those of the cosine, which is the same for all, do not: the check takes the
    scores from the output, and from 95 positions the share of the cosines' roundings that they have, 0 or 1.
    """
    y_BTD = numerics.tensor(stack.run_block(_lengths_of_queries(stack, element)).y, torch.float64)
    weights_TH, positions_T1 = y_BTD[0, 1:, :HEADS], torch.arange(1.0, y_BTD.shape[1], dtype=torch.float64)[:, None]
    assert bool(((weights_TH > 0) & (weights_TH < 1)).all()), "a key's weight is not between 0 and 1"
    scores_TH = torch.log(weights_TH * positions_T1 / (1 - weights_TH))
    turns_T1 = positions_T1.sin() if element else positions_T1.cos()
    off_TH = scores_TH / (LOUD / 2 * _lengths().double()) - turns_T1
    lost_T1 = turns_T1.bfloat16().double() - turns_T1
    share = float((off_TH.mean(1, keepdim=True) * lost_T1).sum() / lost_T1.square().sum())
    want, name = float(chosen(stack, "rope-turns") == "activations"), "sines" if element else "cosines"
    assert abs(share - want) < 0.25, f"scores have {share:.2f} of what {name} lose in bfloat16, expected {want:.0f}"


def _lengths() -> Tensor:
    """Odd multiples of 1/128, exact in bfloat16: their products with a cosine are rounded in as many ways."""
    return 1 + (2 * torch.arange(HEADS) + 1) / 128


def _lengths_of_queries(stack: Blocks, element: int) -> BlockCall:
    """Token 0 has the key and a value of 1; all others have keys of zero and queries of another length in each head."""
    recipe = replace(BARE, hidden=4 * HEADS, heads=HEADS, kv_groups=1, norm_eps=1e-30, seq_length=96)
    x_BTD = torch.zeros(1, 96, recipe.hidden, dtype=torch.bfloat16)
    x_BTD[0, 0, 0] = 1.0
    x_BTD[0, 1:, 1] = 1.0
    shapes = stack.block_weights(recipe, 0, "nemo_native")
    weights = {name: torch.zeros(shape.shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    weights["norm.weight"] += recipe.hidden**-0.5  # undoes the norm of a vector with a single 1
    weights["mixer.wq.weight"][::4, 1] = _lengths().bfloat16()
    weights["mixer.wk.weight"][element, 0] = LOUD
    weights["mixer.wv.weight"][0, 0] = 1.0
    weights["mixer.wo.weight"][torch.arange(HEADS), 4 * torch.arange(HEADS)] = 1.0
    return BlockCall(recipe=recipe, layer=0, weights=numerics.arrays(weights), x=numerics.array(x_BTD))
