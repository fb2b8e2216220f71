"""pytest started on several ranks of this machine, from one process that waits for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from contracts.court.ranks import command, environment
from contracts.harness import child
from contracts.spec.errors import Unreachable

GRACE_S = 20.0  # what the ranks get after a signal before they are killed
LOG = "ranks.log"


def run(ranks: int, arguments: Sequence[str], folder: Path) -> str:
    """Run pytest on `ranks` ranks to its end; everything that is printed goes to `folder`. Returns the last words.

    Raises:
        Unreachable: where torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise Unreachable("several ranks need torch: pip install 'lanegate[torch]'")
    with child.stoppable(GRACE_S) as stop:
        ended = child.run(command(ranks, arguments), environment(), folder / LOG, frozenset(), stop, lambda line: None)
    return ended.last_words
