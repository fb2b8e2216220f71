"""The resident memory of this process in bytes, as the kernel counts it: now, and the peak since its start."""

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def now() -> int:
    """Resident bytes of this process; the peak on systems without /proc."""
    return _line("VmRSS") or peak()


def peak() -> int:
    """The peak of resident bytes.

    `ru_maxrss` is the second choice, because on Linux a new process inherits the value of its parent.
    """
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _line("VmHWM") or most * (1 if sys.platform == "darwin" else 1024)


def _line(name: str) -> int:
    """A field of /proc/self/status in bytes (the file has KiB); 0 if it is absent."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
