"""Where what a check saves lies: a new folder, of one process or of all ranks, in memory where that can be.

A checkpoint is synced, file by file, and a disk takes some milliseconds for each: on ranks that share a machine that is
more than the run takes.
"""

from __future__ import annotations

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
    """A folder in memory; None, which is the usual place, where TMPDIR says another (ranks of several hosts need one
    that all of them see) or there is not much memory to be had."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOMY
    return MEMORY if roomy and "TMPDIR" not in os.environ else None


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=scratch()) as path:
        yield Path(path)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder of which all ranks know. It goes when every rank is done, or with the process where one has failed.

    A rank that leaves early, because the stack declines the case say, must not take it from those that come after.
    """
    own = tempfile.mkdtemp(prefix="checkpoints-", dir=scratch()) if here().rank == 0 else ""
    (at, *_) = gathered(own)
    if own:
        atexit.register(shutil.rmtree, own, ignore_errors=True)
    yield Path(at)
    gathered("done")
    if own:
        shutil.rmtree(own, ignore_errors=True)
