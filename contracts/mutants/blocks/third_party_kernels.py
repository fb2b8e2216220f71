"""Stacks that call a third-party kernel wrongly, or not at all."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.instruments import numerics
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.spec.kernel_selection import Facts, Package
from contracts.stacks.reference.stack import Reference


@mutant(of="BLK-08a", case="scan-of-mamba2", says="native ran at scan, and mamba-ssm was required")
class FallsBackWithoutAWord(Reference):
    """The bridge does not support this shape, and the block's own scan runs silently in its place."""

    def run_block(self, call: BlockCall) -> BlockRun:
        return super().run_block(replace(call, kernels={}))


@mutant(of="BLK-08a", case="scan-of-mamba2", says="mamba-ssm is installed and cannot be imported")
class TakesABrokenPackageForAnAbsentOne(Reference):
    """mamba-ssm is installed and does not load, because its extension was built for another torch."""

    def kernel_facts(self) -> Facts:
        facts = super().kernel_facts()
        broken = Package(state="broken", words="undefined symbol")
        return replace(facts, packages={**facts.packages, "mamba-ssm": broken})


@mutant(of="BLK-08b", case="mlp", says="over 3 times the bound")
class CopiesWeightsInFloat8(Reference):
    """The bridge passes the weights in 8 bits."""

    def run_block(self, call: BlockCall) -> BlockRun:
        import torch

        held = numerics.tensors(call.weights)
        coarse = {name: each.to(torch.float8_e5m2).to(each.dtype) if each.is_floating_point() else each
                  for name, each in held.items()}  # fmt: skip
        return super().run_block(replace(call, weights=numerics.arrays(coarse)))


@mutant(of="BLK-08b", case="attention", says="transformer-engine is installed and cannot be imported")
class ImportsAnEmptyMetapackage(Reference):
    """`pip install transformer-engine` alone installs a metapackage that raises an error on import."""

    def kernel_facts(self) -> Facts:
        facts = super().kernel_facts()
        broken = Package(state="broken", words="Found empty transformer-engine meta package installed")
        return replace(facts, packages={**facts.packages, "transformer-engine": broken})
