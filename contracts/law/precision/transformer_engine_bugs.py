"""Stacks that round, scale or bypass what Transformer Engine's layer computes."""

from dataclasses import replace

import torch

from contracts.instruments import numerics
from contracts.law._bugs.numeric import Reference, broken
from contracts.spec import Wish


@broken(
    Reference, "run_block", "PREC-03a[shared-expert]: with transformer-engine asked for but not installed, y differs"
)
def prepares_for_the_bridge(run_block, self, call):
    """Weights are rounded to bfloat16 for Transformer Engine before the stack knows whether it is installed."""
    if any(wish.kernel == "transformer-engine" for wish in call.kernels.values()):
        held = {name: each.to(torch.bfloat16).to(each.dtype) for name, each in numerics.tensors(call.weights).items()}
        call = replace(call, weights=numerics.arrays(held))
    return run_block(self, call)


@broken(Reference, "run_block", "PREC-03a[experts]: asked for but not installed, gradient mixer.experts.w1 differs")
def scales_its_gradients_for_the_bridge(run_block, self, call):
    """Transformer Engine accumulates weight gradients in its own buffer; the fallback divides by the count all the
    same.
    """
    run = run_block(self, call)
    if not any(wish.kernel == "transformer-engine" for wish in call.kernels.values()):
        return run
    name = "mixer.experts.w1"
    halved = {**run.gradients, name: numerics.array(numerics.tensor(run.gradients[name]) / 2)}
    return replace(run, gradients=halved)


@broken(Reference, "run_block", "PREC-03b[dense]: mlp ran as native, expected transformer-engine")
def bridges_in_name_only(run_block, self, call):
    """Transformer Engine's layer is chosen and built, but the block calls the stack's own layer."""
    return run_block(self, replace(call, kernels={site: Wish(kernel="native") for site in call.kernels}))
