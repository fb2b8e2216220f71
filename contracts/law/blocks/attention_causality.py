"""Causality of attention: no later token, no other document and no other row has an effect. The zeros are exact."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics
from contracts.law._support.attention_calls import BARE, MQA, PACKED, ROWS, Lengths, call_of, slice_of, with_weights
from contracts.law._support.late import torch
from contracts.law._support.recipes import SMALL, SMALL_DSA, SMALL_MLA
from contracts.spec import EXACT, Blocks, Recipe

_ASKS = ("block_weights", "run_block")

SEEN = {  # recipe, documents of each row, the token that changes, factor on the queries
    "gqa": (SMALL, ROWS, 4, 1.0),
    "gqa-packed": (SMALL, PACKED, 6, 1.0),
    "the-last-token": (MQA, ROWS, 8, 1.0),
    "beyond-a-tile-of-64": (SMALL, ((67,), (67,)), 65, 1.0),
    # Scores of -1e5 and less: a finite mask value in place of minus infinity exceeds the scores of visible keys.
    "loud": (BARE, ROWS, 3, 3e5),
    "loud-packed": (BARE, PACKED, 6, 3e5),
    "mla": (SMALL_MLA, ROWS, 4, 1.0),
    "mla-packed": (SMALL_MLA, PACKED, 6, 1.0),
    "dsa": (SMALL_DSA, ROWS, 7, 1.0),
    "dsa-packed": (SMALL_DSA, PACKED, 8, 1.0),
}


@contract("BLK-01a", asks=_ASKS, cases=SEEN, source="naming")
def attention_does_not_see_what_follows(stack: Blocks, recipe: Recipe, lengths: Lengths, t: int, loud: float) -> None:
    """Replacing the tokens from t on changes no output of attention before t, and outputs before t send no gradient to
    those tokens: both exactly.

    The backward pass is tested too, because a backward kernel has its own mask.
    """
    call = call_of(stack, recipe, lengths)
    if loud != 1:
        wq = numerics.tensor(call.weights["mixer.wq.weight"]) * loud
        call = replace(call, weights=with_weights(call, {"mixer.wq.weight": numerics.array(wq)}))
    x_BTD = numerics.tensor(call.x)
    other_BTD = x_BTD.clone()
    other_BTD[:, t:] = fixtures.normal("other", tuple(x_BTD[:, t:].shape))
    one, two = stack.run_block(call), stack.run_block(replace(call, x=numerics.array(other_BTD), dy=None))
    words = numerics.difference(f"y before token {t}", slice_of(two.y, slice(None), slice(t)),
                           slice_of(one.y, slice(None), slice(t)), EXACT)  # fmt: skip
    assert not words, f"tokens from {t} on were replaced, and {words}"
    assert one.y != two.y, f"tokens from {t} on were replaced, and no output changed"

    dy_BTD = torch.zeros_like(x_BTD)
    dy_BTD[:, t - 1] = numerics.tensor(call.dy)[:, t - 1] if call.dy else 0
    back = numerics.tensor(stack.run_block(replace(call, dy=numerics.array(dy_BTD))).gradients["x"])
    words = numerics.difference(f"the gradient of y at token {t - 1} with respect to later tokens", back[:, t:],
                           torch.zeros_like(back[:, t:]), EXACT)  # fmt: skip
    assert not words, words
    # A softmax that is saturated may give all of its weight to another token: then it sends the token itself nothing.
    seen, who = (slice(t - 1, t), "itself") if loud == 1 else (slice(t), "and to those before it")
    words = f"the gradient of y at token {t - 1} with respect to the token {who} is zero"
    assert bool(back[:, seen].any()), words


DOCUMENTS = {
    "gqa": (SMALL, PACKED),
    "mqa": (MQA, PACKED),
    "without-qk-norm": (BARE, PACKED),
    "every-token-a-document": (SMALL, ((1, 1, 1), (2, 1))),
    "mla": (SMALL_MLA, PACKED),
    "dsa": (SMALL_DSA, PACKED),
    "beside-a-whole-row": (SMALL, ((10,), (4, 6), (10,))),
    "mla-beside-a-whole-row": (SMALL_MLA, ((3, 7), (10,))),
}


@contract("BLK-02a", asks=_ASKS, cases=DOCUMENTS, source="F06")
def documents_do_not_attend_to_each_other(stack: Blocks, recipe: Recipe, lengths: Lengths) -> None:
    """A document in a packed row has exactly the same attention outputs whatever the other documents contain, and its
    outputs send them no gradient.
    """
    call = call_of(stack, recipe, lengths)
    x_BTD = numerics.tensor(call.x)
    noise_BTD = fixtures.normal("noise", tuple(x_BTD.shape))
    whole = stack.run_block(replace(call, dy=None)).y
    for row, documents in enumerate(lengths):
        start = 0
        for number, length in enumerate(documents):
            inside = torch.zeros(x_BTD.shape[:2], dtype=torch.bool)
            inside[row, start : start + length] = True
            start += length
            name = f"document {number} of row {row}"
            other = numerics.array(torch.where(inside[..., None], x_BTD, noise_BTD))
            dy = numerics.array(torch.where(inside[..., None], noise_BTD, 0.0))
            run = stack.run_block(replace(call, x=other, dy=dy))
            mine = numerics.tensor(run.y)[inside]
            words = numerics.difference(f"y of {name}", mine, numerics.tensor(whole)[inside], EXACT)
            assert not words, f"the other documents were replaced, and {words}"
            back = numerics.tensor(run.gradients["x"])[~inside]
            words = numerics.difference(
                f"the gradient of {name} with respect to the others", back, torch.zeros_like(back), EXACT
            )
            assert not words, words


ALONE = {
    "gqa": (SMALL, ROWS),
    "gqa-packed": (SMALL, PACKED),
    "mla": (SMALL_MLA, ROWS),
    "dsa": (SMALL_DSA, ROWS),
    "dsa-packed": (SMALL_DSA, PACKED),
}


@contract("BLK-03d", asks=_ASKS, cases=ALONE, source="naming")
def a_row_attends_to_itself_alone(stack: Blocks, recipe: Recipe, lengths: Lengths) -> None:
    """A row of a batch has exactly the same attention output whatever the other rows contain."""
    call = call_of(stack, recipe, lengths, backward=False)
    one = stack.run_block(call).y
    for row in range(len(lengths)):
        other_BTD = fixtures.normal("other", call.x.shape)
        other_BTD[row] = numerics.tensor(call.x)[row]
        two = stack.run_block(replace(call, x=numerics.array(other_BTD))).y
        words = numerics.difference(f"y of row {row}", slice_of(two, row), slice_of(one, row), EXACT)
        assert not words, f"the other rows were replaced, and {words}"
