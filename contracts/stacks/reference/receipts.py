"""What the reference writes about a run, and how it compares two of them."""

from __future__ import annotations


class ReceiptsSide:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset()
