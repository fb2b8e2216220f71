"""Widths that FP8 products accept: a stack refuses all others at once, and no valid one."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.fp8_calls import DENSE, FP8, LATENT, with_scaling
from contracts.law._support.refusals import refusal_of
from contracts.spec import Batch, Degrees, Mamba, Mla, Moe, Recipe, Stack

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
