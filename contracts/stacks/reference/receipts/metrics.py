"""The figures of a run and the counts of a model, by the definitions of `contracts.spec.receipt`."""

import math
import re
from collections.abc import Mapping

from contracts.spec import Refusals
from contracts.spec.receipt import Figures, Weight, WeightCount, Work

PEAK_FLOPS: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("A100", ""): {"bf16": 312e12},
    ("A100", "PCIE"): {"bf16": 312e12},
    ("H100", ""): {"bf16": 989.5e12, "fp8": 1979e12},
    ("H100", "PCIE"): {"bf16": 756.5e12, "fp8": 1513e12},
    ("H100", "NVL"): {"bf16": 835.5e12, "fp8": 1670.5e12},
    ("H200", ""): {"bf16": 989.5e12, "fp8": 1979e12},
    ("H200", "NVL"): {"bf16": 835.5e12, "fp8": 1670.5e12},
    ("GH200", ""): {"bf16": 989.5e12, "fp8": 1979e12},
    ("H20", ""): {"bf16": 148e12, "fp8": 296e12},
    ("B200", ""): {"bf16": 2250e12, "fp8": 4500e12},
    ("GB200", ""): {"bf16": 2500e12, "fp8": 5000e12},
    ("L40S", ""): {"bf16": 362.05e12, "fp8": 733e12},
}
"""A card and its form (SXM or the only one if empty) → FLOP/s of one device, dense, by NVIDIA's data sheets "A100",
"H100", "H200", "GH200", "H20", "DGX B200", "GB200 NVL72" and "L40S". Those of A100, H20 and L40S print dense figures;
the others print figures with sparsity, twice this."""


def _peak(device: str, dtype: str) -> float | None:
    """The peak of a device by the name that its driver gives it; None for a part of a card."""
    maker, *words = re.split(r"[ -]", device.upper())
    form = next((each for each in ("PCIE", "NVL") if each in words), "")
    known = maker == "NVIDIA" and words and "MIG" not in words
    return PEAK_FLOPS.get((words[0], form), {}).get(dtype) if known else None


def figures(work: Work) -> Figures:
    """Throughput, model FLOPs and MFU.

    Raises:
        Refused: for a device whose peak is not known, and for a window without work.
    """
    found = Refusals()
    for name in ("tokens", "seconds", "world"):
        value = getattr(work, name)
        found.unless(value > 0, name, value, "must be positive", "measure a window in which steps ran")
    peak = _peak(work.device, work.dtype)
    found.unless(peak is not None, "device", work.device, f"has no known peak in {work.dtype}",
                 "add its dense peak from the data sheet")  # fmt: skip
    found.raise_any()
    rate = work.tokens / work.seconds
    attention = 12 * work.attention_layers * work.heads * work.head_dim * work.seq_length
    flops = 6 * work.parameters + attention
    return Figures(tokens_per_second=rate, flops_per_token=flops, mfu=rate * flops / (work.world * float(peak or 1)))


def count_weights(weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
    """Total, active and multiplied parameters.

    Raises:
        Refused: for a tensor that shares the storage of one that does not exist or has another size, and for routed
            weights that do not divide over the experts.
    """
    sizes = {weight.name: math.prod(weight.shape) for weight in weights}
    found = Refusals()
    for weight in weights:
        owner = weight.same_as
        found.unless(owner is None or sizes.get(owner) == sizes[weight.name], f"{weight.name}.same_as", owner,
                     "is not a tensor of the same size", "name the tensor whose storage it shares")  # fmt: skip
    owned = [weight for weight in weights if weight.same_as is None]
    routed = sum(sizes[weight.name] for weight in owned if weight.routed)
    found.unless(routed == 0 or (experts > 0 and routed * top_k % experts == 0), "experts", experts,
                 f"does not divide the routed weights ({routed})", "give the number of routed experts")  # fmt: skip
    found.raise_any()
    total = sum(sizes[weight.name] for weight in owned)
    active = total - routed + (routed * top_k // experts if routed else 0)
    multiplied = {weight.same_as or weight.name for weight in weights if not weight.lookup}
    looked_up = sum(sizes[weight.name] for weight in owned if weight.lookup and weight.name not in multiplied)
    return WeightCount(total=total, active=active, matmul=active - looked_up)
