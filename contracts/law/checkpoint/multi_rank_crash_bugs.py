"""Ranks that publish what others have not written, write over other ranks' files, or keep a failure to themselves."""

from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist

from contracts.law._bugs.broken import broken, derived
from contracts.spec import Refused
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoint.filesystem import Disk
from contracts.stacks.reference.checkpoint.manifest import Manifest


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
