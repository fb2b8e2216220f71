"""Stacks whose dry run predicts another step than the one they run."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.spec.recipe import Recipe
from contracts.spec.traffic import Rehearsal, Routing
from contracts.spec.training import Execution
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


@mutant(of="TRAF-04g", case="tp2-sp", says="predicted as all_reduce(sum)")
class RehearsesWithoutSequenceParallel(Spread):
    """The dry run leaves out sequence parallelism, so that its plan is for another run."""

    def rehearse(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        plain = replace(execution, degrees=replace(execution.degrees, sp=False))
        return super().rehearse(recipe, plain, rank, routing)


class _ChecksItsNorm(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        if dist.get_backend() != "fake":
            dist.all_reduce(torch.ones(1))


@mutant(of="TRAF-04g", case="dp2", says="is all_reduce(sum) 1 float32 over [0, 1], predicted as",
        leanest="the first that is not predicted is all_reduce(sum) 1 float32")  # fmt: skip
class SendsMoreInEarnest(Spread):
    """A running step verifies something with a collective that the dry run, which has no numbers, leaves out."""

    trains = _ChecksItsNorm
