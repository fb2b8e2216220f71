"""Asynchronous saves on several ranks that do not hold the state of the moment they were called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from contracts.contract import mutant
from contracts.mutants._support.patched_functions import swapped
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.checkpoint import checkpoint
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoint.dcp_storage import ShardWriter
from contracts.stacks.reference.checkpoint.filesystem import Disk


class _CopiesOnTheFirst(Checkpoints):
    def snapshot(self, state: State) -> State:
        if not dist.is_initialized() or dist.get_rank() == 0:
            return super().snapshot(state)
        return replace(state, tensors=dict(state.tensors), position=dict(state.position))


@mutant(of="CKPT-03g", case="the-last-is-late", says="step 9 was saved in the background, rank 1 late, and the state",
        bugs=("RSM-08",))  # fmt: skip
class CopiesTheStateOfTheFirstRank(Exchanged):
    """Only the rank that publishes copies its state; the others pass on references that training overwrites."""

    exchange = {"checkpoints": _CopiesOnTheFirst}


class _CopiesLate(Checkpoints):
    def save_later(self, state: State) -> None:
        held = replace(state, tensors=dict(state.tensors), position=dict(state.position))
        self.pending.append(self.writer.submit(lambda: self.save(self.snapshot(held))))


@mutant(of="CKPT-03g", case="the-first-is-late", says="step 98 was saved in the background, rank 0 late, and the state",
        bugs=("RSM-06",))  # fmt: skip
class CopiesWhenItsTurnComes(Exchanged):
    """Every rank copies its shards in the writer's thread. While the previous save is still being written, they become
    those of a later step.
    """

    exchange = {"checkpoints": _CopiesLate}


class _LooksFirst(Checkpoints):
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        self.wait()
        *_, before, _ = self.steps()
        return super().load(target, recipe=recipe, step=before if step is None else step)


@mutant(of="CKPT-03g", case="the-first-is-late", says="a load right after the save of step 100", bugs=("RSM-07",))
class LoadsTheOneBefore(Exchanged):
    """A load looks for the newest checkpoint before it waits for the saves, so the last one was not complete when it
    looked.
    """

    exchange = {"checkpoints": _LooksFirst}


class _CountsOn(Checkpoints):
    def snapshot(self, state: State) -> State:
        kept = super().snapshot(state)
        return kept if dist.get_rank() else replace(kept, position=state.position)


@mutant(of="CKPT-03g", case="the-middle-of-three", says="late, and its position is")
class CountsOnWhereItPublishes(Exchanged):
    """Shards are copied but the counters of the publishing rank are not, so they name a later place in the data."""

    exchange = {"checkpoints": _CountsOn}


class _MakesItWhenItWrites(ShardWriter):
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        disk, self.disk = self.disk, _MakesNothing()
        planned = super().prepare_global_plan(plans)
        self.disk = disk
        return planned

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if dist.get_rank() == 0:
            self.disk.make(self.folder)
        return super().write_data(plan, planner)


class _MakesNothing(Disk):
    def make(self, folder: Path) -> None:
        pass


class _WritesBesideTheFirst(Checkpoints):
    def save(self, state: State) -> None:
        with swapped(checkpoint, "ShardWriter", _MakesItWhenItWrites):
            super().save(state)


@mutant(of="CKPT-03g", case="the-first-is-late", says="called as (98, 99, 100)",
        bugs=("RSM-34",))  # fmt: skip
class MakesTheFolderOnTheFirstAlone(Exchanged):
    """The first rank makes the folder when it begins to write, and nobody waits for it: where its disk is late, the
    others write into a folder that is not there.
    """

    exchange = {"checkpoints": _WritesBesideTheFirst}


class _SkipsWhileBusy(Checkpoints):
    def save_later(self, state: State) -> None:
        if all(each.done() for each in self.pending):
            super().save_later(state)


@mutant(of="CKPT-03g", case="the-first-is-late", says="called as (98, 99, 100)")
class SkipsASaveWhileAnotherIsUnderWay(Exchanged):
    """A save that comes before the previous one has ended is left out: here on every rank, and where only some ranks
    have ended theirs, the others wait.
    """

    exchange = {"checkpoints": _SkipsWhileBusy}
