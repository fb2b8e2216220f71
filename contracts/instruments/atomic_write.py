"""A file written whole or not at all, so that a reader finds the old text or the new one and never half of either."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from contracts.spec.errors import refuse


def write_whole(path: Path, text: str) -> None:
    """Put `text` at `path`, over what stands there.

    The text goes to a new file in the same folder (a rename across file systems is a copy), is synced, gets its name by
    rename, and the folder is synced so that the name survives a power cut. What fails before the rename leaves the old
    file and nothing beside it; a process that is killed may leave a `.part` file, which no reader looks at.

    Raises:
        Refused: when the file cannot be written; the old one stands.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex}.part")
    try:
        with unfinished.open("x", encoding="utf-8") as file:  # not mkstemp, whose files only their owner may read
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise refuse("path", str(path), problem, "give a path on a volume with space") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
