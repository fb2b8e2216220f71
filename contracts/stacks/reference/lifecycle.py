"""What the reference says of a run that is under way, stuck, failed or slow."""

from __future__ import annotations


class LifecycleSide:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset()
