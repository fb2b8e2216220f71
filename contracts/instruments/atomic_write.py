"""Atomic writes: a reader finds the old text or the new text, never a part of either."""

import contextlib
import os
import uuid
from pathlib import Path

from contracts.spec import refuse


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, over an existing file.

    The text goes to a new file in the same folder (a rename across file systems is a copy). It is synced and renamed.
    Then the folder is synced, so that the name survives a power cut. A failure before the rename leaves only the old
    file; a killed process may leave a `.part` file, which no reader opens.

    Raises:
        Refused: when the file cannot be written; the old file remains.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex}.part")
    try:
        with unfinished.open("x", encoding="utf-8") as file:  # not mkstemp: only the owner may read its files
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
