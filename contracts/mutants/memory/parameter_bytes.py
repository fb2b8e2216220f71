"""Mutants for `checks.memory.parameter_bytes`."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.training import Built
from contracts.stacks.reference.stack import Reference


@mutant(of="MEM-01a", case="nam56r_h200_mla_mtp1_bf16_v1", says="bytes of weights, the model")
class BuildsNoDepths(Reference):
    """The budget counts the prediction head, and the model leaves it out."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        built = super().built(recipe, mode)
        rows = tuple(row for row in built.parameters if "mtp" not in row.name)
        return replace(built, parameters=rows)


@mutant(of="MEM-01a", case="tiny-nam52r", says="bytes of weights, the model")
class PadsTheExperts(Reference):
    """12 experts are padded for the kernel, in memory that no budget counts."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        moe = recipe.moe
        even = recipe if moe is None else replace(recipe, moe=replace(moe, experts=moe.experts + moe.experts % 16))
        return super().built(even, mode)
