"""Ranks that remove checkpoints that they still need, or never remove any."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.mutants._support.multi_rank_saves import Spread
from contracts.mutants._support.pipeline import Staged
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.checkpoint.retention import CheckpointFolder
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer


class _ByName(Checkpoints):
    def copies_of(self, other: CheckpointFolder) -> frozenset[int]:
        return frozenset(step for step, _ in self.named())


@mutant(of="CKPT-05e", case="fsdp2-under-way", says="are left, expected (1, 2, 3, 4)", bugs=("RSM-30",))
class CountsCopiesByTheirNames(Spread):
    """Counts a copy as durable once its folder exists, which is when its upload begins."""

    exchange = {"checkpoints": _ByName}


class _OfAnyRun(Checkpoints):
    def copies_of(self, other: CheckpointFolder) -> frozenset[int]:
        return frozenset(self.steps()) & frozenset(other.steps())


@mutant(of="CKPT-05e", case="pp2-of-another-run", says="are left, expected (1, 2, 3, 4)")
class CountsCopiesOfTheRunBefore(Staged):
    """Copies of an earlier run have the same step numbers and stand in for copies of this run that never arrived."""

    def parts(self) -> Parts:
        return replace(super().parts(), checkpoints=_OfAnyRun)


class _Forgets(PipelineTrainer):
    def retire(self, folder: str, keep: int, durable: str | None = None) -> None:
        super().retire(folder, keep, None)


@mutant(of="CKPT-05e", case="pp2-under-way", says="are left, expected (1, 2, 3, 4)", bugs=("RSM-30",))
class TakesTheFolderForTheOneThatLasts(Staged):
    """The pipeline trainer does not pass on where the durable copies are."""

    trains = _Forgets


class _Never(ParallelTrainer):
    def retire(self, folder: str, keep: int, durable: str | None = None) -> None:
        """Do nothing: there was one rank when this was written."""


@mutant(of="CKPT-05e", case="fsdp2-in-place", says="(1, 2, 3, 4) are left, expected (4,)")
class KeepsEverythingOnSeveralRanks(Spread):
    """Ranks never remove a checkpoint, until the volume is full."""

    trains = _Never


class _OfTheNewest(Checkpoints):
    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        found = super().removable(keep, None)
        return found if durable is None else tuple(step for step in found if step in durable)


@mutant(of="CKPT-05e", case="borrowed-ep2-arrived", says="are left, expected (2, 3, 4)")
class RemovesWhatHasArrived(Spread):
    """Removes every checkpoint that has a durable copy, also the newest, which the run should resume from."""

    exchange = {"checkpoints": _OfTheNewest}
