"""The few operations that change a folder of checkpoints, each of them durable when it returns.

Checkpoints change the disk through a `Disk` and through nothing else. So what happens between any two operations can be
tried out (`CrashingDisk`), and a file system that is no POSIX one needs one class.
"""

import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path


class Disk:
    """A POSIX file system: data is synced before a name points to it, and the name before anyone is informed."""

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.passed()

    def write(self, path: Path, parts: Iterable[bytes]) -> None:
        """A new file, on the platter when this returns.

        Raises:
            OSError: when it exists already, or there is no room.
        """
        with path.open("xb") as file:
            for part in parts:
                file.write(part[: len(part) // 2])
                file.flush()
                self.passed()
                file.write(part[len(part) // 2 :])
            file.flush()
            self.passed()
            os.fsync(file.fileno())
        self.passed()

    def sync(self, folder: Path) -> None:
        """Make the names in a folder survive a power cut."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        self.passed()

    def rename(self, old: Path, new: Path) -> None:
        """Within one folder, so that it is one step; a move across file systems would be a copy."""
        old.rename(new)
        self.passed()

    def remove(self, folder: Path) -> None:
        """A folder and what is in it, file by file."""
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                self.remove(path)
            else:
                path.unlink()
                self.passed()
        folder.rmdir()
        self.passed()

    def discard(self, folder: Path) -> None:
        """What a failed write left behind, as far as that can be removed at all."""
        shutil.rmtree(folder, ignore_errors=True)

    def passed(self) -> None:
        """Called at each boundary: after each operation, and in the middle of each part of a file."""


class CrashingDisk(Disk):
    """A disk whose process exits at the n-th boundary, as by SIGKILL: no handler runs, no buffer is flushed."""

    def __init__(self, dies_after: int | None) -> None:
        self.dies_after = dies_after
        self.boundaries = 0

    def passed(self) -> None:
        self.boundaries += 1
        if self.boundaries == self.dies_after:
            os._exit(DEATH)


class BlockedDisk(Disk):
    """A disk that blocks until it is released. `named` lists the targets of renames, in order."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.named: list[str] = []

    def make(self, folder: Path) -> None:
        self.released.wait()
        super().make(folder)

    def sync(self, folder: Path) -> None:
        self.released.wait()
        super().sync(folder)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.named.append(new.name)


DEATH = 86
"""Exit code of a process that died at a boundary."""
