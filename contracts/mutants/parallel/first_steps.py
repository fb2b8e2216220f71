"""Mutants for `checks.parallel.first_steps`."""

from __future__ import annotations

import torch.distributed as dist

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedOptimizer


class _NoExperts(ShardedOptimizer):
    def step(self, lr: float) -> None:
        kept = {member.name: member.parameter.detach().clone() for member in self.members if member.role == "expert"}
        super().step(lr)
        for member in self.members:
            if member.name in kept:
                member.parameter.detach().copy_(kept[member.name])


@mutant(of="PAR-07", case="borrowed-ep2-fsdp2", says="experts.w1", bugs=("OPT-30",))
class LeavesOutExpertsWithoutCopies(Spread):
    """No optimizer holds the experts that exist on one rank only: the loss falls without them."""

    moves = _NoExperts


class _SavesEarly(ParallelTrainer):
    def position(self) -> dict[str, int]:
        return super().position() | {"step": 4}


@mutant(of="PAR-07", case="borrowed-tp2-sp-ep2-etp1", says="the run resumed after step 4, saved after 5")
class SavesTheStepBeforeIt(Spread):
    """The checkpoint's step number is that of the step before."""

    trains = _SavesEarly


class _StopsShort(ParallelTrainer):
    def move_biases(self, seen: object) -> None:
        if self.number == 4 and dist.get_rank() == 1:
            dist.barrier()
        super().move_biases(seen)  # type: ignore[arg-type]


@mutant(of="PAR-07", case="borrowed-tp2-sp-ep2-etp1", says="is barrier")
class WaitsForNobodyAtTheFifthStep(Spread):
    """One rank enters a barrier before it saves, and the others never do."""

    trains = _StopsShort
