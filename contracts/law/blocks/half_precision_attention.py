"""Attention in half precision: tensors are stored in 16 bits and accumulated in float32, positions are not stored."""

from dataclasses import replace
from typing import Literal

from contracts.contract import contract
from contracts.instruments import fixtures, numerics, oracles
from contracts.law._support.attention_calls import BARE, Lengths, call_of
from contracts.law._support.late import torch
from contracts.law._support.model_passes import drawn_weights, one_pass, tensor
from contracts.law._support.recipes import DENSE, SMALL, SMALL_MLA
from contracts.spec import BFLOAT16, BFLOAT16_MEAN, BlockCall, Blocks, Element, Recipe, Tokens, Training

Trap = Literal["equal keys", "close scores", "far", "loud"]

# With documents the scores are written out; without them a fused kernel may run. Each has its own sums.
TRAPS: dict[str, tuple[Trap, Recipe, Element, Lengths]] = {
    "equal-keys": ("equal keys", BARE, "bfloat16", ((400,),)),
    "equal-keys-packed": ("equal keys", BARE, "bfloat16", ((3, 397),)),
    "close-scores": ("close scores", replace(BARE, rope_theta=10**18), "bfloat16", ((40,),)),
    "close-scores-packed": ("close scores", replace(BARE, rope_theta=10**18), "bfloat16", ((7, 33),)),
    "far": ("far", replace(SMALL, rope_theta=10), "bfloat16", ((400,),)),
    "far-without-qk-norm": ("far", replace(BARE, rope_theta=10), "bfloat16", ((400,),)),
    "loud-float16": ("loud", SMALL, "float16", ((40,),)),
}


@contract("BLK-03k", asks=("block_weights", "run_block"), cases=TRAPS, source="hub naming")
def attention_in_half_precision_adds_up_in_float32(
    stack: Blocks, trap: Trap, recipe: Recipe, dtype: Element, lengths: Lengths
) -> None:
    """With bfloat16 or float16 activations, attention computes scores, softmax, norms and angles in float32: outputs
    match the definition to the rounding of the storage dtype.

    Random inputs hide an error here under the rounding of stored tensors. Each case makes storage nearly exact and one
    sum hard. Equal keys: a bfloat16 sum of 400 ones stops at 256. Close scores: they differ by less than 1 near 200,
    where bfloat16 has steps of 1. Far: bfloat16 cannot hold positions above 256. Loud: float16 cannot hold 1000².
    """
    call = _trap_call(call_of(stack, recipe, lengths, backward=False), trap, dtype)
    length = sum(lengths[0])
    last = range(length - 3, length)
    documents = None if call.documents is None else numerics.tensor(call.documents)[0]
    weights = numerics.tensors(call.weights, torch.float64)
    x_TD = numerics.tensor(call.x, torch.float64)[0]
    want = oracles.attention.grouped(recipe, weights, x_TD, documents, rows=last)
    run = stack.run_block(call)
    assert run.y.dtype == dtype, f"activations are {dtype}, and y is {run.y.dtype}"
    tolerance = BFLOAT16_MEAN if trap in ("far", "equal keys") else BFLOAT16
    words = numerics.difference("y of the last three tokens", numerics.tensor(run.y)[0, length - 3 :], want, tolerance)
    assert not words, f"{trap} in {dtype}: {words}"


_FAR = replace(DENSE, name="far", depth=2, rope_theta=10, seq_length=512, dtype="bf16")
WHOLE_ROWS = {
    "bf16": (_FAR,),
    "fp16": (replace(_FAR, dtype="fp16"),),
    "bf16-without-qk-norm": (replace(_FAR, qk_norm=False),),
    "bf16-latent": (replace(_FAR, mla=SMALL_MLA.mla),),
}
"""A stack may have an attention of its own, with its own rope, for each of the last two."""
FARTHER = 2.0
"""How much more the last tokens may be off than the first, which see fewer keys. Both were equal in a right model;
frequencies in bfloat16 give 3.6, positions 20."""


@contract(
    "BLK-03l",
    asks=("initial", "run_model"),
    cases=WHOLE_ROWS,
    needs={"": (), "bf16-latent": ("mla",)},
    float32=False,
    source="hub naming; F13",
)
def a_model_in_half_precision_knows_far_positions(stack: Training, recipe: Recipe) -> None:
    """A whole model in half precision is as near to the same model in float32 at the end of a row of 512 tokens as at
    its beginning.

    Frequencies and positions of rope are no weights: whoever casts a model to bfloat16 casts its buffers, too, and a
    block that is asked by itself has none of the model's. In bfloat16 a frequency is off by up to 0.2 %, and at token
    512 its angle by half a radian.
    """
    exact = replace(recipe, dtype="fp32")
    half = getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}[recipe.dtype])
    drawn = numerics.tensors(drawn_weights(stack, exact))
    weights = numerics.arrays({name: each.to(half).float() for name, each in drawn.items()})
    tokens_BT = fixtures.integers("far", (2, recipe.seq_length), recipe.vocab)
    given = Tokens(tokens=numerics.array(tokens_BT), labels=numerics.array(tokens_BT.roll(-1, 1)))
    want = tensor(one_pass(stack, exact, weights, given, precision="float32").logits).double()
    got = tensor(one_pass(stack, recipe, weights, given, precision="declared").logits).double()
    first, last = (
        float((got - want)[:, part].norm() / want[:, part].norm()) for part in (slice(0, 64), slice(-64, None))
    )
    assert 0 < first < 0.1, f"the first 64 tokens are off by {first:.2g}, and nothing follows for the last"
    assert last <= FARTHER * first, (
        f"the first 64 tokens are off by {first:.2g} in {recipe.dtype}, the last by {last:.2g}"
    )


def _trap_call(call: BlockCall, trap: Trap, dtype: Element) -> BlockCall:
    """The input of a trap: x in `dtype`, and float32 weights whose values `dtype` holds exactly."""
    half = getattr(torch, dtype)
    weights, x_BTD = numerics.tensors(call.weights), numerics.tensor(call.x)
    if trap == "equal keys":
        weights["mixer.wq.weight"].zero_()
    if trap == "loud":
        x_BTD *= 1000
    if trap == "close scores":  # rows of signs have rms 1, and sums of quarters are exact
        x_BTD = 1 - 2 * fixtures.integers("signs", tuple(x_BTD.shape), 2).double()
        x_BTD[..., 0] = 1
        weights["norm.weight"].fill_(1)
        size = call.recipe.head_dim
        for name, common, own in (("mixer.wq.weight", 128.0, 2.0), ("mixer.wk.weight", 4.0, 0.0)):
            heads = weights[name].zero_().reshape(-1, size, x_BTD.shape[-1])
            # elements 2 and 5 are the slow pair, which theta keeps from turning: one for the offset, one for the rest
            heads[:, size // 2 - 1, 0], heads[:, size - 1, 0] = common, own
        keys = weights["mixer.wk.weight"].reshape(-1, size, x_BTD.shape[-1])
        keys[:, -1, 1:5] = torch.tensor([0.25, 0.5, -0.25, 0.5], dtype=torch.float64)
    held = {name: each.to(half).float() for name, each in weights.items()}
    return replace(call, weights=numerics.arrays(held), x=numerics.array(x_BTD.to(half)))
