"""How ranks share too few cores."""

import os


def take_turns(ranks: int) -> bool:
    """If this machine has no core to spare for so many ranks, keep their threads from preempting each other. True if
    that was necessary and permitted. Whoever chose a policy for this process, such as SCHED_IDLE, keeps it.

    Every gloo group has its own threads, which spin while a preempted thread holds their lock; `benchmarks/ranks.py
    --only crowd` measures the cost. Threads and processes started from this one inherit the policy.
    """
    if not hasattr(os, "SCHED_BATCH") or ranks < len(os.sched_getaffinity(0)):  # of Linux
        return False
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a sandbox may forbid it
        return False
    return True
