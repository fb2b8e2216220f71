"""FP8 products: their definition, quantisation expert by expert, values that a stale scale did not foresee, and the
widths that they accept."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support.answers import refusal_of
from contracts.law._support.fp8_calls import DENSE, FP8, LATENT, call_of, with_scaling
from contracts.law._support.late import torch
from contracts.law._support.recipes import E_LAYER
from contracts.spec import (
    FLOAT32,
    FLOAT64,
    Batch,
    BlockCall,
    Blocks,
    Degrees,
    Element,
    Mamba,
    Mla,
    Moe,
    Recipe,
    Stack,
    Tolerance,
)

_ASKS = ("block_weights", "run_block")

DEFINED: dict[str, tuple[Recipe, tuple[int, int], Element]] = {
    "tensorwise": (DENSE, (2, 9), "float64"),
    "tensorwise-e4m3": (with_scaling(DENSE, "tensorwise", "e4m3"), (2, 9), "float64"),
    "tensorwise-swiglu": (replace(DENSE, activation="swiglu"), (2, 9), "float64"),
    "delayed": (with_scaling(DENSE, "delayed"), (2, 9), "float64"),
    "blockwise": (with_scaling(DENSE, "blockwise"), (2, 67), "float64"),  # more than 128 rows, and inputs
    "mxfp8": (with_scaling(DENSE, "mxfp8"), (2, 33), "float64"),
    "mxfp8-e4m3": (with_scaling(DENSE, "mxfp8", "e4m3"), (2, 33), "float64"),
    "tensorwise-float32": (DENSE, (2, 9), "float32"),
}
TOLERANCES: dict[Element, Tolerance] = {"float64": FLOAT64, "float32": FLOAT32}


@contract("PREC-01d", asks=_ASKS, cases=DEFINED, float32=False, source="hub")
def products_in_fp8_are_their_definition(stack: Blocks, recipe: Recipe, rows: tuple[int, int], dtype: Element) -> None:
    """Outputs and gradients of the dense MLP match the product of quantised factors, with the declared format, scale,
    blocks and block direction.
    """
    words = _differs(stack, call_of(stack, recipe, E_LAYER, rows=rows, dtype=dtype), TOLERANCES[dtype])
    assert not words, words


EXPERTS: dict[str, tuple[Recipe, tuple[int, int]]] = {
    "tensorwise": (replace(FP8, moe=Moe(experts=12, top_k=3, expert_hidden=32, shared_hidden=32)), (2, 3)),
    "delayed": (with_scaling(FP8, "delayed"), (2, 3)),
    "mxfp8": (with_scaling(FP8, "mxfp8", "e4m3"), (2, 3)),
}


@contract("PREC-01e", asks=_ASKS, cases=EXPERTS, source="hub")
def each_expert_is_quantised_by_itself(stack: Blocks, recipe: Recipe, rows: tuple[int, int]) -> None:
    """Each of twelve experts quantises its own tokens and its own matrices, including experts without tokens."""
    moe = recipe.moe
    assert moe is not None
    recipe = replace(recipe, moe=replace(moe, aux_loss=0.0))
    words = _differs(stack, call_of(stack, recipe, E_LAYER, rows=rows), FLOAT64)
    assert not words, words


def _differs(stack: Blocks, call: BlockCall, tolerance: Tolerance) -> str:
    """The differences of an E block from its definition in FP8, outputs first."""
    oracle = oracles.low_precision
    run = stack.run_block(call)
    weights = {name: each.requires_grad_() for name, each in numerics.tensors(call.weights, torch.float64).items()}
    leaves = {"x": numerics.tensor(call.x, torch.float64).requires_grad_()} | weights
    if call.recipe.moe is None:
        y_BTD = oracle.dense(call.recipe, weights, leaves["x"])
    else:
        assert int(numerics.tensor(run.seen["counts"]).min()) == 0, "the fixture leaves no expert without a token"
        y_BTD = oracle.experts(call.recipe, weights, leaves["x"], numerics.tensor(run.seen["experts"]))
    found = numerics.difference("y", run.y, y_BTD.detach(), tolerance)
    if found or call.dy is None:
        return found
    objective = (y_BTD * numerics.tensor(call.dy, torch.float64)).sum()
    gradients = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
    want = {name: each for name, each in zip(leaves, gradients, strict=True) if each is not None}
    return numerics.gradient_differences("gradient", run.gradients, want, tolerance)


STALE: dict[str, tuple[int, float]] = {  # which scale is out of date (input, weight, gradient), by what factor
    "input": (0, 2.0**12),
    "weight": (1, 2.0**12),
    "gradient": (2, 2.0**12),
    "gradient-vanishes": (2, 2.0**-40),
}


@contract("PREC-01f", asks=_ASKS, cases=STALE, source="hub")
def what_a_scale_did_not_foresee_is_clamped(stack: Blocks, tensor: int, factor: float) -> None:
    """A value that a stale scale puts outside the format's range is clamped to the largest number of the format; none
    becomes infinite.

    A cast to e5m2 overflows to infinity and a cast to e4m3 does not, so a test of one says nothing about the other.
    """
    call = call_of(stack, with_scaling(DENSE, "delayed"), E_LAYER)
    weights = dict(call.weights)
    for name in [each for each in weights if "fp8" in each.split(".") and each.endswith(".scale")]:
        scale = numerics.tensor(weights[name])
        scale[tensor] *= factor
        weights[name] = numerics.array(scale)
    words = _differs(stack, replace(call, weights=weights), FLOAT64)
    assert not words, words


ONE = Degrees()
UNALIGNED: dict[str, tuple[Recipe, Degrees, dict[str, str]]] = {  # field → the width that does not fit
    "inner-widths": (replace(FP8, moe=Moe(experts=12, top_k=3, expert_hidden=40, shared_hidden=72)), ONE,
                     {"moe.expert_hidden": "40", "moe.shared_hidden": "72"}),
    "everywhere": (
        replace(FP8, hidden=72, heads=3, kv_groups=1, moe=None, ffn_hidden=100, batch=Batch(micro=1, total=4),
                seq_length=12, mamba=Mamba(heads=4, head_dim=6, state=6, groups=2)), ONE,
        {"hidden": "72", "kv_groups": "24", "ffn_hidden": "100", "mamba.head_dim": "24", "mamba.groups": "12",
         "mamba.state": "24", "seq_length": "12"}),
    "mxfp8-of-16": (with_scaling(replace(DENSE, hidden=80, heads=5, kv_groups=5, ffn_hidden=176), "mxfp8"), ONE,
                    {"hidden": "80", "kv_groups": "80", "ffn_hidden": "176"}),
    "latent": (replace(LATENT, mla=Mla(q_lora=24, kv_lora=16, qk_head=16, qk_rope=8, v_head=16)), ONE,
               {"mla.q_lora": "24", "mla.qk_rope": "24"}),
    "on-one-rank": (replace(DENSE, ffn_hidden=176), Degrees(tp=2), {"ffn_hidden": "88"}),
}  # fmt: skip


@contract("PREC-02a", asks="divide", cases=UNALIGNED, source="hub")
def widths_that_fp8_cannot_take_are_refused(
    stack: Stack, recipe: Recipe, degrees: Degrees, expected: dict[str, str]
) -> None:
    """A stack refuses, all at once, every width on one rank that is not a multiple of 16 (mxfp8: 32) and every number
    of rows that is not a multiple of 8.

    The library that multiplies reports this only at the first step, and only for the first matrix that it meets.
    """
    refused = refusal_of(stack.divide, recipe, degrees, degrees.tp, "own-axis")
    said = {each.field: each.problem for each in refused.refusals if "fp8" in each.problem}
    missing = sorted(expected.keys() - said.keys())
    assert not missing, f"{', '.join(missing)} are not refused for fp8; {', '.join(sorted(said)) or 'nothing'} is"
    for field, width in expected.items():
        assert width in said[field], f"{field} is refused with {said[field]!r}, which does not say {width}"


ALIGNED: dict[str, tuple[Recipe, Degrees]] = {
    "sixteen": (replace(FP8, moe=Moe(experts=12, top_k=3, expert_hidden=48, shared_hidden=80)), ONE),
    "mxfp8-of-32": (with_scaling(DENSE, "mxfp8"), ONE),
    "e4m3-delayed": (with_scaling(FP8, "delayed", "e4m3"), ONE),
    "odd-vocabulary-and-experts": (replace(FP8, vocab=251, moe=Moe(experts=11, top_k=3, expert_hidden=16,
                                                                   shared_hidden=0)), ONE),
    "three-heads": (replace(FP8, mamba=Mamba(heads=3, head_dim=16, state=16, groups=3)), ONE),
    "what-is-not-there": (replace(FP8, pattern="AE", ffn_hidden=100,
                                  mamba=Mamba(heads=3, head_dim=5, state=4, groups=3)), ONE),
    "not-in-fp8": (replace(DENSE, fp8=None, ffn_hidden=100), ONE),
    "on-one-rank": (replace(DENSE, ffn_hidden=96), Degrees(tp=2)),
}  # fmt: skip


@contract("PREC-02b", asks="divide", cases=ALIGNED, source="hub")
def widths_that_fp8_can_take_are_accepted(stack: Stack, recipe: Recipe, degrees: Degrees) -> None:
    """A stack accepts every width that fits. Numbers of heads, of experts and of vocabulary entries may be odd, because
    no FP8 product has them as a width. So may any width of a part that the model lacks or does not run in FP8.
    """
    dp = stack.divide(recipe, degrees, degrees.tp, "own-axis")
    assert dp == 1, f"data-parallel size is {dp}, expected 1"
