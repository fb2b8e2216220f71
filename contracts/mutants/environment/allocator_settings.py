"""Mutants of `checks/environment/allocator_settings.py`."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.contract import mutant
from contracts.spec.devices import AllocatorSeen
from contracts.stacks.reference.stack import Reference


@mutant(of="ENV-03c", case="fsdp2", says="segments are expandable under PYTORCH_ALLOC_CONF=''")
class SetsItTooLate(Reference):
    """The setting is made after the ranks have read it."""

    def allocator_seen(self, environment: Mapping[str, str], device: str) -> AllocatorSeen:
        late = {name: value for name, value in environment.items() if "ALLOC_CONF" not in name}
        return super().allocator_seen(late, device)
