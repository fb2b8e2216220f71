"""The kernel catalogue: which variant may run on which device, and which one replaces it when a guard fails.

Guards fail closed: a device name must equal one of the names in the rule, so a prefix, a suffix or an unknown name does
not match. The sources are the hub's FA4 catalogue and its articles on kernels (`hub`, `naming`): FA3 on 90 and 121,
dense FA4 on 90, 100 and 121, and no FP4 on GB10 (121), whose tensor cores do not support it.

Only one of the four kinds of evidence counts, `executed`. A plan, an observation, and a validation in the shadow of
another kernel show only that a kernel could have run.
"""

import math

from contracts.spec.capacity import KernelChoice, KernelRequest, KernelRule, Need, Promotion, Proof
from contracts.spec.errors import refuse

CATALOGUE: tuple[KernelRule, ...] = (
    KernelRule(
        family="attention",
        variant="fa4",
        fast=True,
        devices=("sm_90", "sm_100", "sm_121"),
        needs=("causal", "no_doc_ids", "no_sliding_window", "no_valid_token_counts"),
        package="flash-attn-4",
        fallback="fa2",
        source="hub: FA4 catalogue, dense surface",
    ),
    KernelRule(
        family="attention",
        variant="fa3",
        fast=True,
        devices=("sm_90", "sm_121"),
        package="flash-attn-3",
        fallback="fa2",
        source="hub: FA4 catalogue",
    ),
    KernelRule(
        family="attention",
        variant="fa2",
        fast=True,
        devices=("sm_80", "sm_90", "sm_100", "sm_121"),
        package="flash-attn",
        fallback="sdpa",
        source="bringup: flash-attn 2.8.3, built for the node",
    ),
    KernelRule(family="attention", variant="sdpa", fast=False, source="torch"),
    KernelRule(
        family="gemm",
        variant="nvfp4",
        fast=True,
        devices=("sm_100",),
        package="transformer-engine",
        fallback="fp8",
        source="naming: GB10 rejects FP4; H200 has no FP4 tensor cores",
    ),
    KernelRule(
        family="gemm",
        variant="mxfp8",
        fast=True,
        devices=("sm_100",),
        package="transformer-engine",
        fallback="fp8",
        source="Transformer Engine: MXFP8 needs Blackwell; GB10 needs a padding flag that is not stock",
    ),
    KernelRule(
        family="gemm",
        variant="fp8",
        fast=True,
        devices=("sm_90", "sm_100", "sm_121"),
        package="transformer-engine",
        fallback="bf16",
        source="hub: FP8 in the training stack",
    ),
    KernelRule(family="gemm", variant="bf16", fast=False, source="torch"),
    KernelRule(
        family="scan",
        variant="mamba-ssm",
        fast=True,
        devices=("sm_80", "sm_90", "sm_100", "sm_121"),
        package="mamba-ssm",
        fallback="sequential",
        source="bringup: mamba-ssm 2.3.1, built for the node",
    ),
    KernelRule(family="scan", variant="sequential", fast=False, source="torch"),
)

# Promotion stops of the FA4 rollout.
MAX_ABS_DIFF = 0.01
MIN_THROUGHPUT_RATIO = 0.90
MAX_MEMORY_RATIO = 1.05
COUNTING_MODES = ("train", "eval")

_NEED_WORDS: dict[Need, str] = {
    "causal": "needs causal attention",
    "no_doc_ids": "does not take doc_ids",
    "no_sliding_window": "has no sliding_window",
    "no_valid_token_counts": "does not take valid_token_counts",
}


def rule(variant: str) -> KernelRule:
    """The rule of a variant.

    Raises:
        Refused: for a variant that the catalogue does not hold.
    """
    for each in CATALOGUE:
        if each.variant == variant:
            return each
    raise refuse("variant", variant, "is not in the catalogue", f"use one of {', '.join(r.variant for r in CATALOGUE)}")


def closed(each: KernelRule, request: KernelRequest) -> str | None:
    """Why a rule may not run for a request; None when every guard passes. The device is checked first."""
    if not each.fast:
        return None
    if request.device not in each.devices:
        return f"{each.variant} runs on {', '.join(each.devices)}, the device is {request.device}"
    met: dict[Need, bool] = {
        "causal": request.causal,
        "no_doc_ids": not request.doc_ids,
        "no_sliding_window": not request.sliding_window,
        "no_valid_token_counts": not request.valid_token_counts,
    }
    unmet = [_NEED_WORDS[need] for need in each.needs if not met[need]]
    if unmet:
        return f"{each.variant} {', '.join(unmet)}"
    if each.package is not None and each.package not in request.installed:
        return f"{each.variant} needs {each.package}, which is not installed"
    return None


def choose(request: KernelRequest) -> KernelChoice:
    """What runs: the requested variant, or the first of its fallbacks whose guards pass, with every reason.

    Raises:
        Refused: for an unknown variant, and for a required variant whose guard fails.
    """
    each, reasons = rule(request.variant), []
    while (reason := closed(each, request)) is not None:
        if request.required:
            raise refuse("variant", request.variant, reason, "drop the requirement, or provide what the guard lacks")
        reasons.append(reason)
        assert each.fallback is not None, f"{each.variant} is guarded and has no fallback"
        each = rule(each.fallback)
    return KernelChoice(
        requested=request.variant,
        actual=each.variant,
        fast=each.fast,
        fallback_reason="; ".join(reasons) or None,
    )


def promotion(variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
    """Whether a variant may become the default on a device: one executed proof that passes, and none that fails."""
    counted, passed, dismissed = [], [], []
    for number, proof in enumerate(proofs, start=1):
        reason = _why_it_does_not_count(proof, variant, device)
        if reason:
            dismissed.append(f"proof {number} does not count: {reason}")
            continue
        counted.append(number)
        stops = _stops(proof)
        if stops:
            return Promotion(allowed=False, reason=f"proof {number} stops it: {', '.join(stops)}")
        passed.append(proof.receipt)
    if counted:
        return Promotion(allowed=True, reason=f"executed: {', '.join(map(str, passed))}")
    return Promotion(allowed=False, reason="; ".join(dismissed) or "no proof was given")


def _why_it_does_not_count(proof: Proof, variant: str, device: str) -> str | None:
    if proof.kind != "executed":
        return f"it is {proof.kind}, not executed"
    if proof.runtime_mode not in COUNTING_MODES:
        return f"it ran in {proof.runtime_mode} mode"
    if proof.requested != variant or proof.actual != variant or proof.fallback_reason:
        return f"{proof.actual} ran where {proof.requested} was requested, {variant} is asked about"
    if proof.device != device:
        return f"it ran on {proof.device}, not on {device}"
    return None if proof.receipt else "it names no receipt"


def _stops(proof: Proof) -> list[str]:
    """The reasons against promotion in a proof that counts. A missing measurement is not a pass."""

    def bad(value: float | None, limit: float, above: bool) -> bool:
        return value is None or math.isnan(value) or (value > limit if above else value < limit)

    found = []
    if proof.finite is not True:
        found.append(f"finite is {proof.finite}")
    if bad(proof.max_abs_diff, MAX_ABS_DIFF, above=True):
        found.append(f"max_abs_diff is {proof.max_abs_diff}, limit {MAX_ABS_DIFF}")
    if bad(proof.throughput_ratio, MIN_THROUGHPUT_RATIO, above=False):
        found.append(f"throughput_ratio is {proof.throughput_ratio}, limit {MIN_THROUGHPUT_RATIO}")
    if bad(proof.memory_ratio, MAX_MEMORY_RATIO, above=True):
        found.append(f"memory_ratio is {proof.memory_ratio}, limit {MAX_MEMORY_RATIO}")
    return found
