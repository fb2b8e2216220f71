"""The node a run needs: its fabric, its disks, its installed stack (PREF, INST, STOR)."""

from __future__ import annotations

from typing import Protocol

from contracts.spec.party import Party


class Machine(Party, Protocol):
    """What a stack's operator side says of a node, from what the node printed."""
