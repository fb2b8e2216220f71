"""Mutants of `checks/environment/allocator_settings.py`."""

from contracts.mutants._support.broken import broken
from contracts.stacks.reference.stack import Reference


@broken(Reference, "allocator_seen", "ENV-03c[fsdp2]: segments are expandable under PYTORCH_ALLOC_CONF=''")
def sets_it_too_late(allocator_seen, self, environment, device):
    """The setting is made after the ranks have read it."""
    late = {name: value for name, value in environment.items() if "ALLOC_CONF" not in name}
    return allocator_seen(self, late, device)
