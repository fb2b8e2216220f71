"""The life of a run: manifests, triage, out-of-memory records, goodput (MANI, MEM-03, MEM-04, GOOD)."""

from __future__ import annotations

from typing import Protocol

from contracts.spec.party import Party


class Lifecycle(Party, Protocol):
    """What a stack says of a run that is under way, stuck, failed or slow."""
