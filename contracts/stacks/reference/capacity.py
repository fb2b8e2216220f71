"""What the reference plans to hold in memory, and which kernels it may choose."""

from __future__ import annotations


class CapacitySide:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset()
