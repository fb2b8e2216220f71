"""A piece of work in a fork of this process, which may hang, die or fill the memory without harm to the others.

What forks has read the contracts and torch, and nothing of the reference: each fork reads that anew, in a tenth of a
second instead of three.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MEMORY = 8 * 2**30  # bytes: a size that is off by a factor ends the fork and not the machine


def forked(work: Callable[[], Iterable[Any]], *, seconds: float) -> list[Any]:
    """The rows that a piece of work gave before it ended, or before its time ran out: it is killed with its children.

    It must not be called where the reference has been imported.
    """
    assert not any(name.startswith("contracts.stacks.reference") for name in sys.modules), (
        "the reference is imported already"
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.jsonl")
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _child(work, file)
        try:
            _awaited(child, seconds)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _child(work: Callable[[], Iterable[Any]], file: Path) -> None:
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        with Path(os.devnull).open("r+b") as nothing:
            for stream in range(3):
                os.dup2(nothing.fileno(), stream)
        with file.open("w", encoding="utf-8") as out:
            for row in work():
                out.write(f"{json.dumps(row)}\n")
                out.flush()
        code = 0
    finally:
        os._exit(code)


def _awaited(child: int, seconds: float) -> None:
    """Wait for a child; where its time is over it is killed."""
    until = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.02)
