"""The gated delta rule of a package, by its function over whole sequences (spec/delta_rule.py)."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from contracts.instruments import numerics
from contracts.spec import DeltaCall, DeltaRun, NotOffered

CHUNK = 64


def answer(call: DeltaCall, rule: Callable[..., tuple[Tensor, Tensor]]) -> DeltaRun:
    """The answer of `rule`, called as flash-linear-attention's `chunk_gated_delta_rule` is.

    Raises:
        NotOffered: for several documents in a row.
    """
    if call.documents is not None:
        raise NotOffered("its gated delta rule on a CPU takes one document a row", "device")
    return passed(call, lambda given: rule(
        *(given[name] for name in ("q", "k", "v", "g", "beta")), chunk_size=call.chunk or CHUNK,
        initial_state=given.get("state"), output_final_state=True, use_qk_l2norm_in_kernel=call.unit_keys,
    ))  # fmt: skip


def passed(call: DeltaCall, rule: Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]]) -> DeltaRun:
    """`rule` over the call's tensors, with its gradients if asked for: none by a tensor that it does not use."""
    given = {name: each.requires_grad_(call.dy is not None) for name, each in numerics.tensors(call.tensors).items()}
    y, state = rule(given)
    found: dict[str, Tensor] = {}
    if call.dy is not None:
        objective = (y * numerics.tensor(call.dy)).sum()
        if call.dstate is not None:
            objective = objective + (state * numerics.tensor(call.dstate)).sum()
        gradients = torch.autograd.grad(objective, list(given.values()), allow_unused=True)
        found = {name: grad for name, grad in zip(given, gradients, strict=True) if grad is not None}
    return DeltaRun(y=numerics.array(y), state=numerics.array(state), gradients=numerics.arrays(found))
