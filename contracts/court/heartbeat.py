"""Reports to the supervising process what is being asked, and until when, so that it can end what the alarm does not.

An alarm in the process of the stack is at the mercy of that process: another handler, blocked signals, SIGSTOP, a loop
that swallows every exception. The supervisor runs in a process of its own and reads one small file for each process
that judges. The file is mapped into memory, so a stack that closes every descriptor does not silence it.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = "RANKPROOF_HEARTBEATS"
"""The variable that holds the folder of the files. Workers and ranks inherit it; without it nobody watches."""
_HEAD = struct.Struct("ddH")  # last beat, due (0 while nothing is asked), bytes of the words
_SIZE = 1024
_maps: dict[int, mmap.mmap] = {}


@dataclass(frozen=True, kw_only=True)
class Beat:
    """The last message of a process: when, what it asks, and until when; `due` is 0 while it asks nothing. Times are
    `time.monotonic()`, which all processes of a machine share."""

    pid: int
    at: float
    due: float
    what: str


@contextmanager
def asking(what: str, seconds: float) -> Iterator[None]:
    """While the block runs, the supervisor knows that it may take some seconds."""
    before = _said()
    _say(time.monotonic() + seconds, what)
    try:
        yield
    finally:
        _say(*before)


def read(folder: Path) -> list[Beat]:
    """The last beat of each living process."""
    found = []
    for file in folder.iterdir():
        with suppress(OSError, ValueError):
            pid = int(file.name)
            os.kill(pid, 0)  # one that ended is nobody's concern any more
            found.append(last(folder, pid))
    return found


def last(folder: Path, pid: int) -> Beat:
    """The last beat of a process, also of one that has ended. Raises OSError or ValueError where there is none."""
    data = (folder / str(pid)).read_bytes()
    if len(data) < _HEAD.size:
        raise ValueError(f"{len(data)} bytes are no beat")
    at, due, length = _HEAD.unpack_from(data)
    return Beat(pid=pid, at=at, due=due, what=data[_HEAD.size : _HEAD.size + length].decode("utf-8", "replace"))


def _map() -> mmap.mmap | None:
    folder, pid = os.environ.get(FOLDER), os.getpid()
    if pid not in _maps and folder:
        with suppress(OSError), Path(folder, str(pid)).open("w+b") as file:
            file.truncate(_SIZE)
            _maps[pid] = mmap.mmap(file.fileno(), _SIZE)
    return _maps.get(pid)


def _said() -> tuple[float, str]:
    said = _map()
    if said is None:
        return 0.0, ""
    _, due, length = _HEAD.unpack_from(said)
    return due, said[_HEAD.size : _HEAD.size + length].decode("utf-8", "replace")


def _say(due: float, what: str) -> None:
    said = _map()
    if said is None:
        return
    words = what.encode("utf-8", "backslashreplace")[: _SIZE - _HEAD.size]
    said[_HEAD.size : _HEAD.size + len(words)] = words
    _HEAD.pack_into(said, 0, time.monotonic(), due, len(words))
