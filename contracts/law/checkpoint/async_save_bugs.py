"""Asynchronous saves on several ranks that do not hold the state of the moment they were called."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch.distributed as dist
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.checkpoint import checkpoint
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.checkpoint.dcp_storage import ShardWriter
from contracts.stacks.reference.checkpoint.filesystem import Disk


@broken(
    Checkpoints,
    "snapshot",
    "CKPT-03g[the-last-is-late]: step 9 was saved in the background, rank 1 late, and the state",
    bugs=("RSM-08",),
)
def copies_the_state_of_the_first_rank(snapshot, self, state):
    """Only the rank that publishes copies its state; the others pass on references that training overwrites."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        return snapshot(self, state)
    return replace(state, tensors=dict(state.tensors), position=dict(state.position))


@broken(
    Checkpoints,
    "save_later",
    "CKPT-03g[the-first-is-late]: step 98 was saved in the background, rank 0 late, and the state",
    bugs=("RSM-06",),
)
def copies_when_its_turn_comes(save_later, self, state):
    """Every rank copies its shards in the writer's thread. While the previous save is still being written, they become
    those of a later step.
    """
    held = replace(state, tensors=dict(state.tensors), position=dict(state.position))
    self.pending.append(self.writer.submit(lambda: self.save(self.snapshot(held))))


@broken(Checkpoints, "load", "CKPT-03g[the-first-is-late]: a load right after the save of step 100", bugs=("RSM-07",))
def loads_the_one_before(load, self, target, *, recipe="", step=None):
    """A load looks for the newest checkpoint before it waits for the saves, so the last one was not complete when it
    looked.
    """
    self.wait()
    *_, before, _ = self.steps()
    return load(self, target, recipe=recipe, step=before if step is None else step)


@broken(Checkpoints, "snapshot", "CKPT-03g[the-middle-of-three]: late, and its position is")
def counts_on_where_it_publishes(snapshot, self, state):
    """Shards are copied but the counters of the publishing rank are not, so they name a later place in the data."""
    kept = snapshot(self, state)
    return kept if dist.get_rank() else replace(kept, position=state.position)


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


@broken(Checkpoints, "save", "CKPT-03g[the-first-is-late]: called as (98, 99, 100)", bugs=("RSM-34",))
def makes_the_folder_on_the_first_alone(save, self, state):
    """The first rank makes the folder when it begins to write, and nobody waits for it: where its disk is late, the
    others write into a folder that is not there.
    """
    with mock.patch.object(checkpoint, "ShardWriter", _MakesItWhenItWrites):
        save(self, state)


@broken(Checkpoints, "save_later", "CKPT-03g[the-first-is-late]: called as (98, 99, 100)")
def skips_a_save_while_another_is_under_way(save_later, self, state):
    """A save that comes before the previous one has ended is left out: here on every rank, and where only some ranks
    have ended theirs, the others wait.
    """
    if all(each.done() for each in self.pending):
        save_later(self, state)
