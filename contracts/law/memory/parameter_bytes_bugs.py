"""Mutants for `checks.memory.parameter_bytes`."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


@broken(Reference, "built", "MEM-01a[nam56r_h200_mla_mtp1_bf16_v1]: bytes of weights, the model")
def builds_no_depths(former, self, recipe, mode):
    """The budget counts the prediction head, and the model leaves it out."""
    built = former(self, recipe, mode)
    rows = tuple(row for row in built.parameters if "mtp" not in row.name)
    return replace(built, parameters=rows)


@broken(Reference, "built", "MEM-01a[tiny-nam52r]: bytes of weights, the model")
def pads_the_experts(built, self, recipe, mode):
    """12 experts are padded for the kernel, in memory that no budget counts."""
    moe = recipe.moe
    even = recipe if moe is None else replace(recipe, moe=replace(moe, experts=moe.experts + moe.experts % 16))
    return built(self, even, mode)
