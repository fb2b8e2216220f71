"""What a run leaves behind and how two runs compare: receipts and comparison classes (RCPT, CMP)."""

from __future__ import annotations

from typing import Protocol

from contracts.spec.party import Party


class Evidence(Party, Protocol):
    """What a stack writes about a run, and what it makes of two of them."""
