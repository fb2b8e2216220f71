"""A process between a process and whoever started it: it sees how the other ends, and outlives every way of ending.

Whatever runs in a process can end it with 0 (`os._exit`, an exit handler, native code), and nothing in that process can
take it back. So the process that was started becomes the guard, and a copy of it continues the work. The guard ends as
the copy did, with two differences: a 0 counts only where the copy has said that it is through; and where the guard
is asked to stop, or its own parent is gone, the copy is stopped, and killed where it takes too long.
"""

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.ranks import guard_program
from contracts.ranks.guard_program import LEFT, SET_CHILD_SUBREAPER, SET_PDEATHSIG, heard_here, prctl


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """What the copy has of its guard. `orders` is a descriptor from which it reads the numbers of the signals that the
    guard was sent, a byte each; -1 where it is sent the signals themselves."""

    orders: int = -1
    words: int = -1
    inode: int = 0

    def say(self, code: int, *, final: bool = False) -> None:
        """Say that this process is through with its work, and its exit code. `final`: nobody is to start it again."""
        with contextlib.suppress(OSError):  # without a word it counts as red
            if self.words >= 0 and os.fstat(self.words).st_ino == self.inode:  # code under test may have closed it
                os.write(self.words, f"{code} {int(final)}\n".encode())


def command(words: Sequence[str], *, patience_s: float) -> list[str]:
    """A command under a guard that ends it, and all that it has started, once the caller is gone."""
    heard = ",".join(str(int(number)) for number in heard_here())
    given = (f"parent={os.getpid()}", "tree=1", f"patience={patience_s}", f"heard={heard}")
    return [sys.executable, "-I", "-S", guard_program.__file__, *given, "--", *words]


def stand_between(
    *,
    parent: int,
    orders: bool = False,
    words: str = "",
    agent: int = 0,
    leads: bool = False,
    tree: bool = False,
    patience_s: float = 20.0,
) -> Guarded:
    """Make this process the guard of a copy of itself, and return in the copy.

    Args:
        parent: the process whose end is a reason to stop.
        orders: signals are written to a pipe instead of being sent, so that the copy need not handle any.
        words: a 0 counts only where the copy has said so; what is told where it has not.
        agent: a launcher that is to be ended where the end is red and final; by the guard that `leads`, for which the
            others wait.
        tree: every process that descends from the copy goes with it.
        patience_s: what the copy gets to stop before it is killed.
    """
    heard = heard_here()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*heard, signal.SIGCHLD])
    read_orders, write_orders = os.pipe() if orders else (-1, -1)
    read_words, write_words = os.pipe() if words else (-1, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of other threads, which are no part of what goes on
        child = os.fork()
    if child == 0:
        if orders:  # a launcher signals the whole group, and the copy is to hear of it from the guard
            os.setpgid(0, 0)
        prctl(SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in (write_orders, read_words):
            if descriptor >= 0:
                os.close(descriptor)
        return Guarded(orders=read_orders, words=write_words, inode=os.fstat(write_words).st_ino if words else 0)
    if tree:
        prctl(SET_CHILD_SUBREAPER, 1)
    for descriptor in (write_orders, read_words):
        if descriptor >= 0:
            os.set_inheritable(descriptor, True)
    given = {"child": child, "parent": parent, "orders": write_orders, "words": read_words, "missing": words,
             "agent": agent, "leads": int(leads), "tree": int(tree), "patience": patience_s,
             "heard": ",".join(str(int(number)) for number in heard)}  # fmt: skip
    try:
        os.execv(
            sys.executable,
            [sys.executable, "-I", "-S", guard_program.__file__, *(f"{k}={v}" for k, v in given.items())],
        )
    finally:
        os._exit(LEFT)  # and the copy goes with it
