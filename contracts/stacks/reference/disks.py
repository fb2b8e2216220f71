"""What the reference says of an installed stack, an install plan and a storage map."""

from __future__ import annotations


class DisksSide:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset()
