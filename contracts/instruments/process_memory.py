"""What a process holds in memory, in bytes, as the kernel counts it: now, and at most since it began."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def now() -> int:
    """Resident bytes of this process; its peak where no /proc tells."""
    return _line("VmRSS") or peak()


def peak() -> int:
    """The most that was ever resident.

    `ru_maxrss` is the second choice: on Linux it begins, in a process that was started by another, with what that one
    held.
    """
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _line("VmHWM") or most * (1 if sys.platform == "darwin" else 1024)


def _line(name: str) -> int:
    """A line of /proc/self/status, which counts in KiB; 0 where there is none."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
