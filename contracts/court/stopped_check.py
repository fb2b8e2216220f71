"""Starts a check of a stack that does not answer, stops it from outside, and looks at what it leaves."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from contracts.court import record
from contracts.court.torchrun_session import environment
from contracts.spec.errors import Refused
from contracts.spec.interpreter import python
from contracts.spec.records import Stop, Stopped, Word

STACK = """
import pathlib, subprocess, time
from contracts.spec.pattern import blocks, parse

class Slow:
    name, version, labels = "slow", "1", {}
    layouts, offers = frozenset(), frozenset({"blocks"})

    def blocks(self, pattern, depth):
        subprocess.Popen(["sleep", "60"])  # as a stack has workers
        pathlib.Path("asked").touch()
        while not pathlib.Path("answer").exists():
            time.sleep(0.02)
        return blocks(parse(pattern, depth))
"""
ASKED = ("check", "--stack", "slow:Slow", "--profile", "PAT-01[nam56r]", "--with", "none", "--report", "out")
START = "from contracts.harness.cli import main; main(prog_name='rankproof')"
MARK = "RANKPROOF_STOPPED"
PATIENCE_S = 60.0  # for what takes a second or two, on a loaded machine
ENDS_S = 10.0  # what its processes get to end
SMALL = 64  # bytes: a file that can hold no line of a record


def run(by: Stop, *, start: str = START) -> Stopped:
    """What a check leaves. `start` is the Python that runs the command, with its words in `sys.argv`."""
    with tempfile.TemporaryDirectory() as place:
        folder, mark = Path(place), uuid.uuid4().hex
        (folder / "slow.py").write_text(STACK, encoding="utf-8")
        paths = os.pathsep.join([place, *filter(None, [os.environ.get("PYTHONPATH")])])
        changed = {MARK: mark, "PYTHONPATH": paths, "RANKPROOF_PROGRESS": "0"}
        with subprocess.Popen(
            python("-c", start, *ASKED), cwd=folder, env={**environment(), **changed},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        ) as running:  # fmt: skip
            try:
                _until(lambda: (folder / "asked").exists() or running.poll() is not None)
                _stop(by, running.pid, mark)
                if by == "full disk":
                    (folder / "answer").touch()
                code = running.wait(PATIENCE_S)
                _until(lambda: not _living(mark), ENDS_S)
                left = tuple(_living(mark).values())
                (folder / "answer").touch()
                _until(lambda: not any("sleep" not in each for each in _living(mark).values()))
                return Stopped(exit_code=code, left=left, word=_word(folder / "out"))
            finally:
                for pid in _living(mark):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)


def _stop(by: Stop, pid: int, mark: str) -> None:
    if by != "full disk":
        os.kill(pid, signal.Signals[by])
        return
    for each in _living(mark):
        with contextlib.suppress(OSError):  # one that has just ended
            resource.prlimit(each, resource.RLIMIT_FSIZE, (SMALL, SMALL))


def _until(true: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.02)


def _living(mark: str) -> dict[int, str]:
    """The processes with a mark in their environment, and their commands."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = " ".join(Path(os.fsdecode(word)).name for word in words if len(word) < 80)
    return found


def _word(folder: Path) -> Word | None:
    try:
        return record.load(folder)[1].word
    except Refused:
        return None
