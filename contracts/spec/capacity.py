"""What fits and what may run: memory budgets and the kernel catalogue (MEM-02, KRN-02, KRN-03)."""

from __future__ import annotations

from typing import Protocol

from contracts.spec.party import Party


class Capacity(Party, Protocol):
    """What a stack plans to hold in memory, and which kernels it may choose."""
