"""Ranks that publish what others have not written, write over other ranks' files, keep a failure to themselves, or save
references instead of copies."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch.distributed as dist
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from contracts.law._bugs.numeric import Checkpoints, Disk, Manifest, broken, derived
from contracts.law._bugs.numeric import manifest as manifests
from contracts.spec import Refused
from contracts.stacks.reference.checkpoint import checkpoint
from contracts.stacks.reference.checkpoint.checkpoint import State
from contracts.stacks.reference.checkpoint.dcp_storage import ShardWriter
from contracts.stacks.reference.checkpoint.filesystem import CrashingDisk


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


@derived("CKPT-03d[the-last-of-two]: step 4 is the latest, but it was refused", bugs=("RSM-31",))
class PointsWhenTheFirstIsDone(Checkpoints):
    """Rank 0 writes the pointer to the new checkpoint when it has written its own shards."""

    @property
    def pointer(self) -> Path:
        return self.folder / "latest.txt"

    def latest(self) -> int | None:
        return int(self.pointer.read_text()) if self.pointer.exists() else None

    def save(self, state: State) -> None:
        if _rank() == 0:
            beside = self.pointer.with_name("latest.new")
            beside.write_text(str(state.step))
            beside.rename(self.pointer)
        super().save(state)


class _OneName(Disk):
    """Gives the files of all ranks the same name."""

    def __init__(self, under: Disk) -> None:
        self.under = under

    def write(self, path: Path, parts: Iterable[bytes]) -> None:
        beside = path.with_suffix(".part") if path.suffix == ".bin" else path
        self.under.write(beside, parts)
        if beside != path:
            beside.replace(path.with_name(f"shard-00000-{path.name[-9:]}"))

    def passed(self) -> None:
        self.under.passed()


@broken(Checkpoints, "__init__", "CKPT-03d[the-last-of-two]: step 4 was saved again: it was refused", bugs=("RSM-62",))
def writes_one_file(init, self, folder, *, disk=None, **named):
    """Files are named by data-parallel rank: ranks with the same one overwrite each other, and the last write stays."""
    init(self, folder, disk=_OneName(disk or Disk()), **named)


@derived("CKPT-03d[the-first-of-two]: is the latest, but it was refused", bugs=("RSM-31",))
class PublishesItself(Checkpoints):
    """Each rank completes its own folder below the step's name, and nothing says that all ranks have finished."""

    def save(self, state: State) -> None:
        """Save each rank by itself, its manifest beside its shards; the folder has its final name from the start."""
        final = self.folder / self.name_of(state.step)
        alone = Checkpoints(final / f"of-{_rank()}", disk=self.disk, alone=True)
        alone.__class__ = Checkpoints
        whole = {name: each.full_tensor() if hasattr(each, "full_tensor") else each
                 for name, each in state.tensors.items()}  # fmt: skip
        alone.save(State(step=state.step, tensors=whole, position=state.position, recipe=state.recipe))

    def is_complete(self, step: int, path: Path) -> bool:
        return path.is_dir()

    def opened(self, step: int | None = None) -> Manifest:
        chosen = self.latest() if step is None else step
        return manifests.read(self.folder / self.name_of(chosen or 0) / "of-0" / self.name_of(chosen or 0))

    def folder_of(self, manifest: Manifest) -> Path:
        return self.folder / self.name_of(manifest.step) / "of-0" / self.name_of(manifest.step)


@broken(CrashingDisk, "passed", "CKPT-03d[the-last-of-two]: no rank died at any boundary")
def is_never_struck(passed, self):
    """The fault does not reach the rank, so that every save ends well."""
    self.boundaries += 1


@broken(Checkpoints, "save", "CKPT-03f[the-last-of-two]: rank 1 found no room, and the ranks ended done")
def keeps_it_to_itself(save, self, state):
    """A rank that wrote its own shards counts the save as done."""
    try:
        save(self, state)
    except Refused:
        if _rank() > 0:
            raise  # rank 0 only logs a warning


@broken(Checkpoints, "abandon", "CKPT-03f[the-last-of-two]: rank 1 found no room, and these files are left")
def leaves_what_others_wrote(abandon, self, unfinished):
    """Only the rank that found no room cleans up, and it does not know under which names the others wrote."""
    if _rank() > 0:
        abandon(self, unfinished)


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
