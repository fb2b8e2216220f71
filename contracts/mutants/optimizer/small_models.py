"""Mutants of `checks.optimizer.transformers`."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.mutants.optimizer import sharded_optimizer
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.training import Built
from contracts.stacks.reference.stack import Reference


@mutant(of="OPT-04e", case="ep2", says="exp_avg of ", bugs=("CLP-07",))
class ClipsTheExpertsOfATransformerApart(sharded_optimizer.ClipsExpertsByThemselves):
    """Experts are clipped by a norm of their own."""


@mutant(of="OPT-04e", case="fsdp2", says="moved differently")
class DecaysShardsByAPart(sharded_optimizer.DividesTheDecayOfShards):
    """Decay is divided by the number of ranks that share a tensor, as if it were a gradient."""


@mutant(of="OPT-01h", case="fsdp2", says="did not move by adamw with decay 0.1")
class TellsAnotherDecay(Reference):
    """The table comes from the configuration, and the optimizer from an older copy of it."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        answer = super().built(recipe, mode)
        rows = tuple(replace(row, weight_decay=0.1) for row in answer.parameters)
        return replace(answer, parameters=rows)
