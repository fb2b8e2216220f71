"""Reads the folder of a run without changing it: manifest.json, receipt.json, logs, and the artifacts it names.

It reports what is there; `spec.triage` draws conclusions.
"""

import datetime
from dataclasses import dataclass
from pathlib import Path

from contracts.spec import refuse
from contracts.spec.manifest import Manifest, loads

MANIFEST, RECEIPT = "manifest.json", "receipt.json"
LARGEST = 16 * 2**20  # bytes; far above any manifest or receipt, and a device file would never end


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The contents of the folder. `receipt` is not parsed. `present` are the declared artifacts that exist and are not
    empty, because an aborted upload leaves an empty file."""

    manifest: Manifest | None
    receipt: bytes | None
    logs: tuple[str, ...]
    present: tuple[str, ...]


def read_folder(folder: Path) -> RunFolder:
    """Read a run's folder.

    Raises:
        Refused: when it is not a folder, cannot be read, or its manifest is invalid.
    """
    if not folder.is_dir():
        raise refuse("run", str(folder), "is no folder", "give the folder that holds the run's manifest.json")
    text = _text(folder / MANIFEST)
    manifest = None if text is None else loads(text)
    declared = manifest.artifacts if manifest else ()
    logs = sorted(path.name for path in [*folder.glob("*.log"), *folder.glob("logs/*")] if path.is_file())
    return RunFolder(
        manifest=manifest,
        receipt=_text(folder / RECEIPT),
        logs=tuple(logs),
        present=tuple(name for name in declared if _holds_something(folder / name)),
    )


def seconds_silent(manifest: Manifest, now: datetime.datetime) -> float:
    """Seconds since a detached run was launched, a running one was last polled, or an ended one ended. Zero if this
    clock is slower than the collector's."""
    heard = manifest.launched_at
    if manifest.state != "detached":
        heard = manifest.completed_at or manifest.last_polled_at or heard
    return max(0.0, (now - datetime.datetime.fromisoformat(heard)).total_seconds())


def _text(path: Path) -> bytes | None:
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > LARGEST:
            raise refuse(path.name, path.stat().st_size, f"bytes are more than {LARGEST}", "is it the right file?")
        return path.read_bytes()
    except OSError as error:
        raise refuse(path.name, str(path), f"cannot be read: {error.strerror or error}", "look at its rights") from None


def _holds_something(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except (OSError, ValueError):
        return False
