"""Stacks that take the wrong checkpoint for the newest, or save to a place that is lost with the host."""

import re
from dataclasses import replace
from pathlib import Path

from contracts.law._bugs.broken import broken, derived, with_attributes
from contracts.spec import Refused, refuse
from contracts.spec.installation import Disks, StorageMap
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.stack import Reference


@broken(Checkpoints, "latest", "CKPT-06a[nine-ten-and-a-hundred]: of [9, 10, 100] the latest is 9, expected 100")
def last_as_text(latest, self):
    """Takes `sorted(names)[-1]`."""
    return max(self.steps(), key=str, default=None)


@broken(Checkpoints, "latest", "CKPT-06a[nine-and-ten]: of [9, 10] the latest is 9, expected 10")
def last_to_be_touched(latest, self):
    """Goes by modification time: an old checkpoint that was copied back is the newest."""
    held = self.steps()
    return max(held, key=lambda step: (self.folder / self.name_of(step)).stat().st_mtime, default=None)


@broken(Checkpoints, "named", "CKPT-06a[wider-than-the-names]: the latest is 99999999, expected 100000000")
def knows_eight_digits(named, self):
    """Accepts only names with eight digits, until a step has nine."""
    return [(step, path) for step, path in named(self) if len(path.name) == len("step-00000000")]


@derived("CKPT-06b[copies-and-backups]: the latest is 8, expected 4", bugs=("RSM-44",))
class TakesAnyDigits(Checkpoints):
    """Reads a number out of any name: a backup of step 8 counts as step 8."""

    def named(self) -> list[tuple[int, Path]]:
        found = [(re.search(r"\d+", path.name), path) for path in self.folder.iterdir()]
        return [(int(match[0]), path) for match, path in found if match]

    def is_complete(self, step: int, path: Path) -> bool:
        return (path / manifests.NAME).exists()


@broken(Checkpoints, "is_complete", "CKPT-06b[husks-of-later-steps]: the latest is 9, expected 4", bugs=("RSM-44",))
def takes_folders_for_checkpoints(is_complete, self, step, path):
    """Takes any folder with the right name for a checkpoint."""
    return path.is_dir()


@broken(Checkpoints, "is_complete", "CKPT-06b[whole-copies-of-another-name]: the latest is 7, expected 4")
def trusts_the_name(is_complete, self, step, path):
    """Believes the folder's name instead of the step in the manifest."""
    return (path / manifests.NAME).exists() and not manifests.truncated_files(path, manifests.read(path))


@broken(Checkpoints, "is_complete", "CKPT-06b[later-steps-that-were-cut-off]: the latest is 7, expected 4")
def counts_no_bytes(is_complete, self, step, path):
    """Takes a checkpoint with a readable manifest for complete, however little the disk kept of its files."""
    try:
        return manifests.read(path).step == step
    except Refused:
        return False


@broken(Checkpoints, "is_complete", "CKPT-06b[later-steps-that-grew]: step 7 is the latest among")
def counts_bytes_that_are_there(is_complete, self, step, path):
    """Asks whether a file is long enough: the start finds the checkpoint, and the load refuses it each time."""
    try:
        manifest = manifests.read(path)
    except Refused:
        return False
    held = {name: path / name for name in manifest.files}
    return manifest.step == step and all(
        each.is_file() and each.stat().st_size >= manifest.files[name].bytes for name, each in held.items()
    )


class _Unlinked(Reference):
    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        return super().checkpoint_folder(save, run, storage, replace(disks, links={}))


with_attributes(
    "ComparesTexts",
    "Over-correction: refuses a link that leads back into the directory.",
    "CKPT-07a[through-a-link-that-stays]: a legal input was refused",
    owner=_Unlinked,
)


@broken(Reference, "checkpoint_folder", "CKPT-07b[a-link-that-leads-away]: expected a refusal")
def follows_no_links(checkpoint_folder, self, save, run, storage, disks):
    """Compares the beginning of the path, although a link in it leads to the root volume."""
    if save is not None and save.startswith("/mnt/data/"):
        return save
    return checkpoint_folder(self, save, run, storage, disks)


@broken(Reference, "checkpoint_folder", "CKPT-07a[below-the-durable-directory]: runs 1 and 2 share")
def shares_one_folder(checkpoint_folder, self, save, run, storage, disks):
    """Every run saves to one folder: the second run resumes from the first."""
    return checkpoint_folder(self, save, "latest" if save is None else run, storage, disks)


@broken(Reference, "checkpoint_folder", "CKPT-07b[a-name-that-begins-alike]: expected a refusal")
def compares_letters(checkpoint_folder, self, save, run, storage, disks):
    """Calls `startswith` without the slash."""
    if save is not None and save.startswith(storage.durable):
        return save
    return checkpoint_folder(self, save, run, storage, disks)


@broken(Reference, "checkpoint_folder", "CKPT-07b[volume-not-mounted]: expected a refusal", bugs=("PRV-16",))
def asks_for_no_mount(checkpoint_folder, self, save, run, storage, disks):
    """Looks only at paths: the mount point exists even when the volume is not mounted."""
    if save is None or not save.startswith(f"{storage.durable}/"):
        raise refuse("checkpoint.save", save, f"is not below {storage.durable}", "put it there")
    return save


@broken(
    Checkpoints, "opened", "CKPT-06e[older-than-the-latest]: step 2 was asked for, and its step is 6", bugs=("RSM-37",)
)
def prefers_the_newest(opened, self, step=None):
    """A newer checkpoint for recovery wins over the step that the user named."""
    latest = self.latest()
    return opened(self, latest if step is not None and latest is not None and step < latest else step)


@broken(Checkpoints, "opened", "CKPT-06e[in-the-middle]: step 3 is not among (2, 4, 6), and step 4 was loaded")
def takes_the_nearest(opened, self, step=None):
    """Falls back to the nearest step in place of the one that is not there."""
    below = [each for each in self.steps() if step is not None and each >= step]
    return opened(self, min(below, default=step))
