"""Starts pytest on several ranks of this machine, and waits for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.court.torchrun_session import RESTARTS, command, environment
from contracts.harness import child_process
from contracts.spec.errors import Unreachable
from contracts.spec.redaction import LineRedactor, secrets_here

GRACE_S = 20.0  # what the ranks get after a signal before they are killed
LOG = "ranks.log"
LAST_CHARACTERS = 2000


def run(ranks: int, arguments: Sequence[str], folder: Path, *, restarts: int = RESTARTS) -> str:
    """Run pytest on `ranks` ranks to its end; everything that is printed goes to `folder`. Returns the last lines.

    `restarts` is how many tests may kill a rank before the run is given up.

    Raises:
        Unreachable: where torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise Unreachable("several ranks need torch: in the checkout of rankproof run pip install '.[torch]'")
    log = folder / LOG
    with child_process.stoppable(GRACE_S) as stop, log.open("wb") as file:
        running = subprocess.Popen(
            command(ranks, arguments, restarts=restarts), env=environment(), stdin=subprocess.DEVNULL, stdout=file,
            stderr=file, start_new_session=True,
        )  # fmt: skip
        stop.attach(running)
        running.wait()
    return _redacted(log)[-LAST_CHARACTERS:].strip()


def _redacted(log: Path) -> str:
    """The log without secrets, on disk as well."""
    redactor = LineRedactor(secrets_here(os.environ, sys.argv))
    with log.open(encoding="utf-8", errors="replace") as lines:
        text = "".join(redactor.line(line) for line in lines) + redactor.rest()
    log.write_text(text, encoding="utf-8")
    return text
