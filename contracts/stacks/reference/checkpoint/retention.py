"""A folder of checkpoints: which are complete, which is the latest, which may be deleted. Standard library only."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from contracts.spec import Refusals, Refused, refuse
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.filesystem import Disk
from contracts.stacks.reference.checkpoint.manifest import Manifest

_STEP = re.compile(r"step-([0-9]{8,})")  # [0-9]: \d takes the digits of every script, and so does int()
_LEFTOVER = re.compile(r"step-([0-9]{8,})\.(?:tmp|gone)-[0-9a-f]{32}")


class CheckpointFolder:
    """A folder of checkpoints with one writer: this process, or the ranks of one run."""

    def __init__(self, folder: str | Path, disk: Disk | None = None) -> None:
        self.folder = Path(folder)
        self.disk = disk or Disk()

    # finding
    def name_of(self, step: int) -> str:
        return f"step-{step:08d}"

    def steps(self) -> tuple[int, ...]:
        """The steps of every complete checkpoint, ascending by number."""
        return tuple(sorted(step for step, path in self.named() if self.is_complete(step, path)))

    def named(self) -> list[tuple[int, Path]]:
        """Entries named like a checkpoint. A missing folder has none; the first save creates it."""
        entries = self.folder.iterdir() if self.folder.is_dir() else ()
        matches = [(_STEP.fullmatch(path.name), path) for path in entries]
        return [(int(match[1]), path) for match, path in matches if match]

    def is_complete(self, step: int, path: Path) -> bool:
        try:
            manifest = manifests.read(path)
        except Refused:
            return False
        return manifest.step == step and not manifests.truncated_files(path, manifest)

    def latest(self) -> int | None:
        return max(self.steps(), default=None)

    def damages(self, folder: Path, manifest: Manifest) -> Refusals:
        """Damage to the files of a checkpoint that shows without reading them."""
        found = manifests.truncated_files(folder, manifest)
        found.merge(manifests.unlisted_files(folder, manifest))
        return found

    def copies_of(self, other: CheckpointFolder) -> frozenset[int]:
        """The steps that are complete here and are the same save there: a run that began anew has the same steps."""
        both = set(self.steps()) & set(other.steps())
        return frozenset(step for step in both if self.save_of(step) == other.save_of(step))

    def save_of(self, step: int) -> str:
        """The identifier of a save; two saves of one step differ in it."""
        return manifests.read(self.folder / self.name_of(step)).save

    # retiring
    def retire(self, keep: int, durable: frozenset[int] | None = None) -> tuple[int, ...]:
        """Remove old checkpoints and leftovers of dead writers. Returns the steps removed.

        Args:
            durable: steps whose copy has reached the storage that counts; None where this folder is that storage.

        Raises:
            Refused: when `keep` is not positive.
        """
        removed = self.removable(keep, durable)
        for step in removed:
            self.remove(self.folder / self.name_of(step))
        self.clear()
        return removed

    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        """Complete checkpoints older than the newest `keep`, each with a newer one that is durable."""
        if keep < 1:
            raise refuse("keep", keep, "must be at least 1", "keep the checkpoint that a resume needs")
        steps = self.steps()
        safe = steps if durable is None else tuple(step for step in steps if step in durable)
        return tuple(step for step in steps[:-keep] if any(newer > step for newer in safe))

    def remove(self, path: Path) -> None:
        """Rename first, so that a half-removed folder is not taken for a checkpoint."""
        gone = path.with_name(f"{path.name}.gone-{uuid.uuid4().hex}")
        self.disk.rename(path, gone)
        self.disk.sync(self.folder)
        self.disk.remove(gone)

    def clear(self) -> None:
        """Remove leftovers of writers that died. Anything newer than the latest checkpoint may still be in progress."""
        newest = self.latest()
        if newest is None:
            return
        for path in list(self.folder.iterdir()):
            match = _LEFTOVER.fullmatch(path.name)
            if match and int(match[1]) <= newest:
                self.disk.remove(path)
