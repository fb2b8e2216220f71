"""Folders for what a check saves: new ones, of one process or of all ranks, in memory where possible.

A checkpoint is synced file by file, and a disk takes some milliseconds for each: on ranks that share a machine, that is
longer than the run.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.instruments.ranks import gathered, here

MEMORY, ROOMY = "/dev/shm", 2**30  # bytes


def scratch() -> str | None:
    """A folder in memory; None, the usual place, where TMPDIR names another (ranks on several hosts need one that all
    of them see) or where memory is short.
    """
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOMY
    return MEMORY if roomy and "TMPDIR" not in os.environ else None


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=scratch()) as path:
        yield Path(path)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder that all ranks know. It is deleted when every rank is done, or with the process where one has
    failed.

    A rank that leaves early, for example because the stack declines the case, must not delete it for later ranks.
    """
    own = tempfile.mkdtemp(prefix="checkpoints-", dir=scratch()) if here().rank == 0 else ""
    (at, *_) = gathered(own)
    if own:
        atexit.register(shutil.rmtree, own, ignore_errors=True)
    yield Path(at)
    gathered("done")
    if own:
        shutil.rmtree(own, ignore_errors=True)
