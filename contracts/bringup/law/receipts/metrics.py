"""The figures of a run: the evidence that they need, and how they are defined (RCPT-04, RCPT-05)."""

import contextlib
import json
import math
from dataclasses import replace
from typing import Any

from contracts.contract import contract
from contracts.law._support.answers import refusal_of
from contracts.law._support.recorded_runs import FACTS, RECEIPT, STEPS
from contracts.spec import Refused
from contracts.spec.receipt import Evidence, Receipt, ReportedStep, Weight, Work

F16 = "F16: a figure needs its witness"
F17 = "F17: metric identities"


def _from_step(first: int, last: int = 3, **changes: Any) -> tuple[ReportedStep, ...]:
    return tuple(replace(step, **changes) if first <= step.number <= last else step for step in STEPS)


# The run of the shared literals: four steps, of which the second and third are the window.
UNWITNESSED: dict[str, tuple[tuple[ReportedStep, ...]]] = {
    "no-step": ((),),
    "warm-up-only": (STEPS[:1],),
    "nan-gradients-finite-loss": (_from_step(0, grad_norm="NaN"),),
    "nan-gradient-after-the-window": (_from_step(3, grad_norm="NaN"),),
    "infinite-gradient": (_from_step(2, grad_norm="Infinity"),),
    "nan-loss": (_from_step(3, loss="NaN"),),
    "gradients-not-measured": (_from_step(0, grad_norm=None),),
    "losses-not-measured": (_from_step(0, loss=None),),
    "skipped-steps": (_from_step(1, skipped=True),),
    "skipped-in-the-window-alone": (_from_step(2, 2, skipped=True, grad_norm="Infinity"),),
    "nan-in-the-window-alone": (_from_step(2, 2, loss="NaN"),),
    "nan-gradient-in-the-window-alone": (_from_step(1, 1, grad_norm="NaN"),),
    "no-time": (_from_step(0, seconds=0.0),),
    "time-not-measured": (_from_step(1, seconds="NaN"),),
}


@contract("RCPT-04", asks="receipt", cases=UNWITNESSED, source=F16)
def a_throughput_needs_a_witness(stack: Evidence, steps: tuple[ReportedStep, ...]) -> None:
    """A run has a throughput only if steps ran after the warm-up and took time, no step of its window was skipped, and
    every loss and gradient norm was measured and finite. Otherwise the receipt withholds the figure and states why.

    A record of 268 TFLOP/s was cited for weeks from a log that had crashed in initialisation. Another came from a
    commit whose gradient norm was NaN in every iteration: steps that update nothing are fast, and the loss of weights
    that never move stays finite.
    """
    receipt = stack.receipt(replace(FACTS, steps=steps))
    rate = receipt.tokens_per_second
    seen = [(step.number, step.loss, step.grad_norm, step.skipped) for step in steps]
    assert rate is None, f"{rate} tokens/s are reported for steps (number, loss, gradient norm, skipped) {seen}"
    assert receipt.withheld, f"the figure is withheld without a reason; steps {seen}"


SKIPPED_IN_WARMUP = (replace(STEPS[0], skipped=True, grad_norm="Infinity"), *STEPS[1:])


@contract("RCPT-04b", asks="receipt", cases={"all-finite": (STEPS,), "scaler-searching": (SKIPPED_IN_WARMUP,)},
          source=F16)  # fmt: skip
def a_witnessed_throughput_stands(stack: Evidence, steps: tuple[ReportedStep, ...]) -> None:
    """A run whose steps after the warm-up trained has a throughput, even if the loss scaler skipped warm-up steps.

    The first steps of a dynamic loss scale overflow by design. A rule that counts them withholds every fp16 figure.
    """
    receipt = stack.receipt(replace(FACTS, steps=steps))
    assert receipt.tokens_per_second == 65_536.0, (
        f"tokens/s is {receipt.tokens_per_second}, expected 65536.0; withheld: {receipt.withheld}"
    )


_WITNESS = RECEIPT.witness
assert _WITNESS is not None
BARE: dict[str, tuple[Receipt, str, object]] = {  # a receipt, and the same made by editing a good one
    "no-witness": (replace(RECEIPT, witness=None), "witness", None),
    "no-step": (
        replace(RECEIPT, witness=replace(_WITNESS, steps=0)), "witness", {**vars(_WITNESS), "steps": 0}
    ),
    "gradients-not-finite": (
        replace(RECEIPT, witness=replace(_WITNESS, finite_gradients=False)),
        "witness", {**vars(_WITNESS), "finite_gradients": False},
    ),
    "losses-not-finite": (
        replace(RECEIPT, witness=replace(_WITNESS, finite_losses=False)),
        "witness", {**vars(_WITNESS), "finite_losses": False},
    ),
    "no-window": (replace(RECEIPT, window=None), "window", None),
}  # fmt: skip


@contract("RCPT-04a", asks=("write_receipt", "read_receipt"), cases=BARE, source=F16)
def a_bare_figure_is_neither_written_nor_read(stack: Evidence, bare: Receipt, field: str, value: object) -> None:
    """Writer and reader both refuse a receipt that has a throughput but no witness, the record that its losses and
    gradient norms were finite.

    A figure outlives its log. In a table by itself it looks like a measured one.
    """
    body = json.loads(stack.write_receipt(RECEIPT))
    body[field] = value
    for refused in (refusal_of(stack.write_receipt, bare), refusal_of(stack.read_receipt, json.dumps(body))):
        assert "tokens_per_second" in str(refused), f"the refusal does not name tokens_per_second: {refused}"


# 2 000 000 000 parameters, 13 attention layers of 56 heads of 64 over 4096 tokens:
# 6 · 2e9 + 12 · 13 · 56 · 64 · 4096 = 12 000 000 000 + 2 290 089 984 FLOPs per token.
H200 = Work(
    tokens=524_288, seconds=8.0, world=8, device="NVIDIA H200", dtype="bf16", parameters=2_000_000_000,
    attention_layers=13, heads=56, head_dim=64, seq_length=4096,
)  # fmt: skip
FLOPS = 14_290_089_984
# 65 536 · 14 290 089 984 = 936.515e12 of 8 · 989.5e12 FLOP/s.
WORKS = {  # → tokens/s, FLOPs per token, MFU
    "h200-bf16": (H200, 65_536.0, FLOPS, 0.118307),
    "h200-full-name": (replace(H200, device="NVIDIA H200 141GB HBM3e"), 65_536.0, FLOPS, 0.118307),
    "h200-fp8": (replace(H200, dtype="fp8"), 65_536.0, FLOPS, 0.0591532),
    "sixteen-gpus": (replace(H200, world=16), 65_536.0, FLOPS, 0.0591532),
    "no-attention": (replace(H200, attention_layers=0), 65_536.0, 12_000_000_000, 0.0993474),
    # 6 · 2e9 + 12 · 13 · 56 · 64 · 16 384
    "16k-tokens": (replace(H200, seq_length=16_384), 65_536.0, 21_160_359_936, 0.175185),
}


@contract("RCPT-05", asks="figures", cases=WORKS, source=F17)
def throughput_and_mfu_follow_their_definitions(
    stack: Evidence, work: Work, rate: float, flops: int, mfu: float
) -> None:
    """tokens/s is tokens over seconds of the whole world. FLOPs per token are 6 · parameters + 12 · attention layers ·
    heads · head_dim · seq_length. MFU is their product over world · the dense peak of the device in its dtype.

    Data sheets print Hopper's peaks with sparsity, which halves an MFU. A table that falls back to A100 triples one.
    Parameters counted after a pipeline split leave out the other stages.
    """
    figures = stack.figures(work)
    assert math.isclose(figures.tokens_per_second, rate), f"tokens/s is {figures.tokens_per_second}, expected {rate}"
    assert figures.flops_per_token == flops, f"FLOPs per token are {figures.flops_per_token}, expected {flops}"
    assert math.isclose(figures.mfu, mfu, rel_tol=2e-3), (  # published peaks are rounded to three or four digits
        f"MFU is {figures.mfu:.6f}, expected {mfu}"
    )


NO_FIGURES = {
    "unknown-device": (replace(H200, device="Instinct 9000"), ("Instinct 9000",)),
    "no-time": (replace(H200, seconds=0.0), ("seconds",)),
    "no-token": (replace(H200, tokens=0), ("tokens",)),
}


@contract("RCPT-05a", asks="figures", cases=NO_FIGURES, source=F17)
def a_figure_without_its_denominator_is_refused(stack: Evidence, work: Work, words: tuple[str, ...]) -> None:
    """A stack refuses to report an MFU for a device whose peak is unknown, or a rate without work to divide by, instead
    of guessing.
    """
    refused = refusal_of(stack.figures, work)
    for word in words:
        assert word in str(refused), f"the refusal does not name {word}: {refused}"


# 936.515e12 of 8 · the peak: 756.5e12, 835.5e12, 148e12, 2500e12 and 362.05e12 FLOP/s. A slice has 3 of 7 parts, and
# 60 of 132 multiprocessors: 0.276 or 0.260.
FORMS = {
    "h100-pcie": ("NVIDIA H100 PCIe", 0.154745),
    "h100-nvl": ("NVIDIA H100 NVL", 0.140113),
    "h20": ("NVIDIA H20", 0.790976),
    "gb200": ("NVIDIA GB200", 0.0468258),
    "l40s": ("NVIDIA L40S", 0.323338),
    "a-slice": ("NVIDIA H200 MIG 3g.71gb", 0.268),
}


@contract("RCPT-05c", asks="figures", cases=FORMS, source=F17)
def a_card_has_the_peak_of_its_own_form_or_is_refused(stack: Evidence, device: str, mfu: float) -> None:
    """A card is not taken for another whose name begins alike: its MFU is of the peak of its own form, or is refused.

    An H100 PCIe has three quarters of the peak of an SXM module, an H20 a seventh. H200 begins with H20.
    """
    with contextlib.suppress(Refused):
        got = stack.figures(replace(H200, device=device)).mfu
        assert math.isclose(got, mfu, rel_tol=0.05), f"MFU on {device} is {got:.6f}, expected {mfu}"


_UNTIED = (
    Weight(name="embedding", shape=(1000, 64), lookup=True),
    Weight(name="attention.qkv", shape=(128, 64)),
    Weight(name="attention.norm", shape=(64,)),
    Weight(name="experts.up", shape=(12, 96, 64), routed=True),
    Weight(name="experts.down", shape=(12, 64, 96), routed=True),
    Weight(name="shared.up", shape=(48, 64)),
    Weight(name="router", shape=(12, 64)),
    Weight(name="head", shape=(1000, 64)),
)
_TIED = (*_UNTIED[:-1], Weight(name="head", shape=(1000, 64), same_as="embedding"))
_APART = (  # every expert its own tensor: expert 10 sorts before expert 2
    Weight(name="embedding", shape=(1000, 64), lookup=True),
    *(Weight(name=f"experts.{number}.up", shape=(96, 64), routed=True) for number in range(12)),
)

# 64 000 + 8 192 + 64 + 73 728 + 73 728 + 3 072 + 768 + 64 000 = 287 552; routed 147 456, of which 2 / 12 are 24 576.
MODELS = {  # → total, active, matmul
    "untied": (_UNTIED, 12, 2, (287_552, 164_672, 100_672)),
    "tied": (_TIED, 12, 2, (223_552, 100_672, 100_672)),
    "an-expert-a-tensor": (_APART, 12, 3, (137_728, 82_432, 18_432)),
    "all-experts": (_UNTIED, 12, 12, (287_552, 287_552, 223_552)),
    "no-experts": (_UNTIED[:3], 0, 0, (72_256, 72_256, 8_256)),
}


@contract("RCPT-05b", asks="count_weights", cases=MODELS, source=F17)
def parameters_are_counted_by_their_definitions(
    stack: Evidence, weights: tuple[Weight, ...], experts: int, top_k: int, expected: tuple[int, int, int]
) -> None:
    """Parameter counts include shared storage once. Active parameters include top_k of the routed experts, and matmul
    parameters include an embedding table only where it is tied to a projection.

    "56B" and "4B active" name the same model. A count that treats all experts as active makes an MFU several times too
    high.
    """
    count = stack.count_weights(weights, experts, top_k)
    counted = (count.total, count.active, count.matmul)
    assert counted == expected, f"the counts are {counted} (total, active, matmul), expected {expected}"
