"""Stacks that take the wrong checkpoint for the newest, or save to a place that is lost with the host."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.errors import Refused, refuse
from contracts.spec.installation import Disks, StorageMap
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.stack import Reference


class _LastAsText(Checkpoints):
    def latest(self) -> int | None:
        return max(self.steps(), key=str, default=None)


@mutant(of="CKPT-06a", case="nine-ten-and-a-hundred", says="of [9, 10, 100] the latest is 9, expected 100")
class LastAsText(Exchanged):
    """Takes `sorted(names)[-1]`."""

    exchange = {"checkpoints": _LastAsText}


class _LastToBeTouched(Checkpoints):
    def latest(self) -> int | None:
        held = self.steps()
        return max(held, key=lambda step: (self.folder / self.name_of(step)).stat().st_mtime, default=None)


@mutant(of="CKPT-06a", case="nine-and-ten", says="of [9, 10] the latest is 9, expected 10")
class LastToBeTouched(Exchanged):
    """Goes by modification time: an old checkpoint that was copied back is the newest."""

    exchange = {"checkpoints": _LastToBeTouched}


class _KnowsEightDigits(Checkpoints):
    def named(self) -> list[tuple[int, Path]]:
        return [(step, path) for step, path in super().named() if len(path.name) == len("step-00000000")]


@mutant(of="CKPT-06a", case="wider-than-the-names", says="the latest is 99999999, expected 100000000")
class KnowsEightDigits(Exchanged):
    """Accepts only names with eight digits, until a step has nine."""

    exchange = {"checkpoints": _KnowsEightDigits}


class _TakesAnyDigits(Checkpoints):
    def named(self) -> list[tuple[int, Path]]:
        found = [(re.search(r"\d+", path.name), path) for path in self.folder.iterdir()]
        return [(int(match[0]), path) for match, path in found if match]

    def is_complete(self, step: int, path: Path) -> bool:
        return (path / manifests.NAME).exists()


@mutant(of="CKPT-06b", case="copies-and-backups", says="the latest is 8, expected 4", bugs=("RSM-44",))
class TakesAnyDigits(Exchanged):
    """Reads a number out of any name: a backup of step 8 counts as step 8."""

    exchange = {"checkpoints": _TakesAnyDigits}


class _TakesFoldersForCheckpoints(Checkpoints):
    def is_complete(self, step: int, path: Path) -> bool:
        return path.is_dir()


@mutant(of="CKPT-06b", case="husks-of-later-steps", says="the latest is 9, expected 4", bugs=("RSM-44",))
class TakesFoldersForCheckpoints(Exchanged):
    """Takes any folder with the right name for a checkpoint."""

    exchange = {"checkpoints": _TakesFoldersForCheckpoints}


class _TrustsTheName(Checkpoints):
    def is_complete(self, step: int, path: Path) -> bool:
        return (path / manifests.NAME).exists() and not manifests.truncated_files(path, manifests.read(path))


@mutant(of="CKPT-06b", case="whole-copies-of-another-name", says="the latest is 7, expected 4")
class TrustsTheName(Exchanged):
    """Believes the folder's name instead of the step in the manifest."""

    exchange = {"checkpoints": _TrustsTheName}


class _CountsNoBytes(Checkpoints):
    def is_complete(self, step: int, path: Path) -> bool:
        try:
            return manifests.read(path).step == step
        except Refused:
            return False


@mutant(of="CKPT-06b", case="later-steps-that-were-cut-off", says="the latest is 7, expected 4")
class CountsNoBytes(Exchanged):
    """Takes a checkpoint with a readable manifest for complete, however little the disk kept of its files."""

    exchange = {"checkpoints": _CountsNoBytes}


class _Unlinked(Reference):
    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        return super().checkpoint_folder(save, run, storage, replace(disks, links={}))


@mutant(of="CKPT-07a", case="through-a-link-that-stays", says="a legal input was refused")
class ComparesTexts(_Unlinked):
    """Over-correction: refuses a link that leads back into the directory."""


@mutant(of="CKPT-07b", case="a-link-that-leads-away", says="expected a refusal")
class FollowsNoLinks(Reference):
    """Compares the beginning of the path, although a link in it leads to the root volume."""

    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        if save is not None and save.startswith("/mnt/data/"):
            return save
        return super().checkpoint_folder(save, run, storage, disks)


@mutant(of="CKPT-07a", case="below-the-durable-directory", says="runs 1 and 2 share")
class SharesOneFolder(Reference):
    """Every run saves to one folder: the second run resumes from the first."""

    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        return super().checkpoint_folder(save, "latest" if save is None else run, storage, disks)


@mutant(of="CKPT-07b", case="a-name-that-begins-alike", says="expected a refusal")
class ComparesLetters(Reference):
    """Calls `startswith` without the slash."""

    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        if save is not None and save.startswith(storage.durable):
            return save
        return super().checkpoint_folder(save, run, storage, disks)


@mutant(of="CKPT-07b", case="volume-not-mounted", says="expected a refusal", bugs=("PRV-16",))
class AsksForNoMount(Reference):
    """Looks only at paths: the mount point exists even when the volume is not mounted."""

    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        if save is None or not save.startswith(f"{storage.durable}/"):
            raise refuse("checkpoint.save", save, f"is not below {storage.durable}", "put it there")
        return save


class _PrefersTheNewest(Checkpoints):
    def opened(self, step: int | None = None) -> manifests.Manifest:
        latest = self.latest()
        return super().opened(latest if step is not None and latest is not None and step < latest else step)


@mutant(of="CKPT-06e", case="older-than-the-latest", says="step 2 was asked for, and its step is 6", bugs=("RSM-37",))
class PrefersTheNewest(Exchanged):
    """A newer checkpoint for recovery wins over the step that the user named."""

    exchange = {"checkpoints": _PrefersTheNewest}


class _TakesTheNearest(Checkpoints):
    def opened(self, step: int | None = None) -> manifests.Manifest:
        below = [each for each in self.steps() if step is not None and each >= step]
        return super().opened(min(below, default=step))


@mutant(of="CKPT-06e", case="in-the-middle", says="step 3 is not among (2, 4, 6), and step 4 was loaded")
class TakesTheNearest(Exchanged):
    """Falls back to the nearest step in place of the one that is not there."""

    exchange = {"checkpoints": _TakesTheNearest}
