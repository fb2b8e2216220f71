"""What is installed and where state lies: the stack table, install plans, the storage map (INST, STOR)."""

from __future__ import annotations

from typing import Protocol

from contracts.spec.party import Party


class Installation(Party, Protocol):
    """What a stack's operator side says of an environment, a plan to install, and the disks."""
