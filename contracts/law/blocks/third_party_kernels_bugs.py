"""Stacks that call a third-party kernel wrongly, or not at all."""

from dataclasses import replace

from contracts.instruments import numerics
from contracts.law._bugs.broken import broken
from contracts.spec import Package
from contracts.stacks.reference.stack import Reference


@broken(Reference, "run_block", "BLK-08a[scan-of-mamba2]: native ran at scan, and mamba-ssm was required")
def falls_back_without_a_word(run_block, self, call):
    """The bridge does not support this shape, and the block's own scan runs silently in its place."""
    return run_block(self, replace(call, kernels={}))


@broken(Reference, "kernel_facts", "BLK-08a[scan-of-mamba2]: mamba-ssm is installed and cannot be imported")
def takes_a_broken_package_for_an_absent_one(kernel_facts, self):
    """mamba-ssm is installed and does not load, because its extension was built for another torch."""
    facts = kernel_facts(self)
    broken = Package(state="broken", words="undefined symbol")
    return replace(facts, packages={**facts.packages, "mamba-ssm": broken})


@broken(Reference, "run_block", "BLK-08b[mlp]: over 3 times the bound")
def copies_weights_in_float8(run_block, self, call):
    """The bridge passes the weights in 8 bits."""
    import torch

    held = numerics.tensors(call.weights)
    coarse = {name: each.to(torch.float8_e5m2).to(each.dtype) if each.is_floating_point() else each
              for name, each in held.items()}  # fmt: skip
    return run_block(self, replace(call, weights=numerics.arrays(coarse)))


@broken(Reference, "kernel_facts", "BLK-08b[attention]: transformer-engine is installed and cannot be imported")
def imports_an_empty_metapackage(kernel_facts, self):
    """`pip install transformer-engine` by itself installs a metapackage that raises an error on import."""
    facts = kernel_facts(self)
    broken = Package(state="broken", words="Found empty transformer-engine meta package installed")
    return replace(facts, packages={**facts.packages, "transformer-engine": broken})
