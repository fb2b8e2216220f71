"""Trainers whose refused run keeps its process groups, or destroys those of others."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.instruments.ranks import torch_distributed
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


class _Keeps(ParallelTrainer):
    def abandon(self) -> None:
        """Nothing: only a run that reaches its end is cleaned up."""


@mutant(of="TOPO-07g", case="borrowed-tp2-sp-ep2-etp1-fsdp", says="is left with")
class KeepsTheGroupsOfARefusedRun(Spread):
    """Closes the mesh on the last line of the run, which a refusal does not reach."""

    trains = _Keeps


class _KeepsTheViews(ParallelTrainer):
    def abandon(self) -> None:
        tp = self.mesh.place("tp")
        kept = self.mesh._made.pop(tp, None)
        super().abandon()
        if kept is not None:
            self.mesh._made[tp] = kept


@mutant(of="TOPO-07g", case="tp2-sp-beside-dp2", says="is left with 1 groups")
class KeepsTheTensorParallelGroup(Spread):
    """Leaves out of the cleanup a group that a compiled region or a cache still names."""

    trains = _KeepsTheViews


class _TakesAll(ParallelTrainer):
    def abandon(self) -> None:
        super().abandon()
        _, dist = torch_distributed()
        _, *others = list(dist.distributed_c10d._world.pg_group_ranks)
        for group in filter(lambda each: isinstance(each, dist.ProcessGroup), others):
            dist.destroy_process_group(group)


@mutant(of="TOPO-07g", case="ep2-fsdp2", says="has lost its group [0, 1]")
class TakesDownWhatWasThereBefore(Spread):
    """Destroys every group but the world's, also those of other components in the process."""

    trains = _TakesAll
