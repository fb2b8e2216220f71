"""Starts pytest on several ranks of this machine, and waits for it."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.harness import child_process
from contracts.spec import Unreachable, launchers
from contracts.spec.interpreter import python
from contracts.spec.redaction import secrets_here

GRACE_S = 20.0  # what the ranks get after a signal before they are killed
LOG = "ranks.log"
RESTARTS = 3  # how many tests may kill a rank before the run is given up


def environment() -> dict[str, str]:
    """The environment of this process without its rank and without options or plugins for another pytest, with one
    thread."""
    outside = launchers.without(os.environ)
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        outside.pop(inherited, None)
    return {"OMP_NUM_THREADS": "1", **outside, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def command(ranks: int, arguments: Sequence[str], *, restarts: int = RESTARTS) -> tuple[str, ...]:
    """`torchrun … -m pytest …` for this interpreter, on this machine only."""
    launcher = python("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--no-python")
    return (*launcher, f"--max-restarts={restarts}", *python("-m", "pytest", *arguments))


def run(ranks: int, arguments: Sequence[str], folder: Path, *, restarts: int = RESTARTS) -> str:
    """Run pytest on `ranks` ranks to its end; everything that is printed goes to `folder` as it comes, without secrets.
    Returns the last lines.

    `restarts` is how many tests may kill a rank before the run is given up.

    Raises:
        Unreachable: where torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise Unreachable("several ranks need torch: in the checkout of rankproof run pip install '.[torch]'")
    known = secrets_here(os.environ, sys.argv)
    with child_process.stoppable(GRACE_S) as stop:
        words = command(ranks, arguments, restarts=restarts)
        ended = child_process.run(words, environment(), folder / LOG, known, stop, echo=lambda _: None)
    return ended.last_words
