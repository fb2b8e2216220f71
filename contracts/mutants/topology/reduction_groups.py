"""Stacks that reduce or gather over the wrong ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import GathersFirst, Spread
from contracts.stacks.kit.roles import role_of
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


class _DenseForAll(ParallelTrainer):
    def unreduced(self, name: str) -> Any:
        return self.mesh.group("rows")


@mutant(of="TOPO-09d", case="borrowed-ep2", says="bytes over [0, 1], expected")
class ReducesExpertsAsDense(Spread):
    """Uses one group for all gradients: those of different experts are added up."""

    trains = _DenseForAll


class _MeansOverSharers(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and role_of(name) != "expert":
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(self.execution.world)


@mutant(of="TOPO-09d", case="ep2", says="bytes over [0, 1], expected 0", bugs=("DPS-08",))
class AveragesOverRanksWithTheSameData(Spread):
    """Ranks that share a batch are averaged like data-parallel ranks: the number is right, but the traffic was for
    nothing.
    """

    trains = _MeansOverSharers


class _NobodyReduces(ParallelTrainer):
    def reduce(self) -> None:
        pass


@mutant(of="TOPO-09d", case="dp2", says="bytes over [0, 1], expected")
class ReducesNothing(Spread):
    """The hook that reduces gradients is never called."""

    trains = _NobodyReduces


@mutant(of="TOPO-04d", case="borrowed-tp2-sp-ep2-etp1", says="move the residual stream")
class HooksSequenceParallelOntoExperts(Spread):
    """With EP active, expert layers also have the hook that gathers the sequence: the bring-up's first hang."""

    trains = GathersFirst
