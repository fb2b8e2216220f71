"""Which tokens a token's output depends on in a block with experts."""

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import (
    PLAIN,
    PLAIN_SIGMOID,
)
from contracts.spec import FLOAT64, Blocks, Moe

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
    numerics = instruments.numerics
    call = replace(expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), 2, 7), dy=None)
    x_BTD = numerics.tensor(call.x)
    x_BTD[b, t] = instruments.fixtures.normal("other", (24,)) * 3
    one, other = stack.run_block(call).y, stack.run_block(replace(call, x=numerics.array(x_BTD))).y
    y_ND, changed_ND = numerics.tensor(one).flatten(0, 1), numerics.tensor(other).flatten(0, 1)
    n = b * 7 + t
    words = numerics.difference("y before it", changed_ND[:n], y_ND[:n], FLOAT64)
    if moe.capacity_factor is None:
        words = words or numerics.difference("y after it", changed_ND[n + 1 :], y_ND[n + 1 :], FLOAT64)
    assert not words, f"after a change of token ({b}, {t}) {words}"
