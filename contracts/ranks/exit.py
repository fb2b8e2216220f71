"""The last steps out of a process that torchrun has started."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from contracts.ranks import guard
from contracts.ranks.rank_environment import Place

_guarded = guard.Guarded()


def under_guard(here: Place, console: Callable[[], AbstractContextManager[object]]) -> None:
    """Put a guard between torchrun and this process, once; in `console` the standard streams are torchrun's. What tests
    have started and left ends with the session."""
    global _guarded  # noqa: PLW0603  # of the process, as its guard is
    if _guarded.words >= 0:
        return
    missing = f"ranks: rank {here.rank} left with exit code 0 before its session was over"
    with console():
        _guarded = guard.stand_between(
            parent=here.agent, orders=True, words=missing, leads=here.local_rank == 0, tree=True,
            agent=here.agent if here.agent_store and here.restarts_left > 0 else 0,
        )  # fmt: skip


def orders() -> int:
    """The descriptor from which this process reads which signals its guard was sent."""
    return _guarded.orders


def through(code: int, *, final: bool = False) -> None:
    """Say that this process is through, and with what exit code; without it, a 0 counts for nothing. `final`: torchrun
    is not to start the ranks again."""
    _guarded.say(code, final=final)


def leave_quietly(code: int, *, final: bool = False) -> NoReturn:
    """Exit without the interpreter's own shutdown, which may crash when half of torch is gone already."""
    through(code, final=final)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def error_file(words: str) -> None:
    """Write a sentence for torchrun's final summary into the file that torchrun names."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        said = {"message": {"message": words, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps(said), encoding="utf-8")
