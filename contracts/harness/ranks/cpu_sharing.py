"""What ranks do about having too few cores."""

from __future__ import annotations

import os


def take_turns(ranks: int) -> bool:
    """Where so many ranks leave this machine no core to spare, have none of their threads take a core in the middle of
    another's work. True where that was asked for, and granted.

    Every gloo group has threads of its own, which spin for as long as one that lost its core holds their lock: what
    `benchmarks/ranks.py --only crowd` measures. Threads and processes that come of this one inherit the policy.
    """
    if not hasattr(os, "SCHED_BATCH") or ranks < len(os.sched_getaffinity(0)):  # of Linux
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a sandbox may forbid it
        return False
    return True
