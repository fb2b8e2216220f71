"""Ranks that write elsewhere, remove checkpoints that they still need, or never remove any."""

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from contracts.law._bugs.numeric import Checkpoints, Disk, ParallelTrainer, PipelineTrainer, Reference, broken
from contracts.stacks.reference.checkpoint.retention import CheckpointFolder


@broken(Checkpoints, "copies_of", "CKPT-05e[fsdp2-under-way]: are left, expected (1, 2, 3, 4)", bugs=("RSM-30",))
def counts_copies_by_their_names(copies_of, self, other):
    """Counts a copy as durable once its folder exists, which is when its upload begins."""
    return frozenset(step for step, _ in self.named())


class _OfAnyRun(Checkpoints):
    def copies_of(self, other: CheckpointFolder) -> frozenset[int]:
        return frozenset(self.steps()) & frozenset(other.steps())


@broken(Reference, "parts", "CKPT-05e[pp2-of-another-run]: are left, expected (1, 2, 3, 4)")
def counts_copies_of_the_run_before(parts, self):
    """Copies of an earlier run have the same step numbers and stand in for copies of this run that never arrived."""
    return replace(parts(self), checkpoints=_OfAnyRun)


@broken(PipelineTrainer, "retire", "CKPT-05e[pp2-under-way]: are left, expected (1, 2, 3, 4)", bugs=("RSM-30",))
def takes_the_folder_for_the_one_that_lasts(retire, self, folder, keep, durable=None):
    """The pipeline trainer does not pass on where the durable copies are."""
    retire(self, folder, keep, None)


@broken(ParallelTrainer, "retire", "CKPT-05e[fsdp2-in-place]: (1, 2, 3, 4) are left, expected (4,)")
def keeps_everything_on_several_ranks(retire, self, folder, keep, durable=None):
    """Ranks never remove a checkpoint, until the volume is full."""


@broken(Checkpoints, "removable", "CKPT-05e[borrowed-ep2-arrived]: are left, expected (2, 3, 4)")
def removes_what_has_arrived(removable, self, keep, durable):
    """Removes every checkpoint that has a durable copy, also the newest, which the run should resume from."""
    found = removable(self, keep, None)
    return found if durable is None else tuple(step for step in found if step in durable)


class _LinksToTheNode(Disk):
    """Writes to the node's own disk, and leaves a link to it where the file should be."""

    def write(self, path: Path, parts: Iterable[bytes]) -> None:
        near = Path(tempfile.mkdtemp()) / path.name
        super().write(near, parts)
        path.symlink_to(near)


@broken(Checkpoints, "__init__", "CKPT-07c[fsdp2]: but rank 1: 1 files are on its own disk")
def writes_nearby(init, self, folder, *, alone=False, of_ranks=()):
    """Every rank but the first writes to its node's fast disk and leaves a link on the durable volume."""
    disk = _LinksToTheNode() if dist.is_initialized() and dist.get_rank() > 0 else Disk()
    init(self, folder, disk=disk, alone=alone, of_ranks=of_ranks)


@broken(Checkpoints, "publish", "CKPT-07c[ep2]: a legal input was refused: folder")
def remembers_its_place(publish, self, unfinished, final, manifest):
    """Shards lie beside the checkpoint folder and it links to them by absolute path: a volume that is mounted under
    another name has none of them.
    """
    first = unfinished / next(iter(manifest.files))
    kept = self.folder / f"{final.name}.{first.name}"
    first.rename(kept)
    first.symlink_to(kept.absolute())
    publish(self, unfinished, final, manifest)
