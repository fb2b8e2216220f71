"""Launches whose receipt has another allocator setting than the one that CUDA obeyed."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


@broken(
    Reference,
    "allocator_seen",
    "ENV-03c[fsdp2]: segments are expandable under PYTORCH_ALLOC_CONF=''",
    "ENV-03a[by-the-lane]: 'expandable_segments:True'), and 0 of ",
)
def sets_it_too_late(allocator_seen, self, environment, device):
    """The setting is made after the ranks have read it."""
    late = {name: value for name, value in environment.items() if "ALLOC_CONF" not in name}
    return allocator_seen(self, late, device)


@broken(Reference, "receipt", "ENV-03a[by-the-alias]: the receipt says None, and ")
def records_what_the_lane_set(receipt, self, facts):
    """The receipt lists the lane's own variables; what was exported counts as somebody else's."""
    return receipt(self, replace(facts, lane=replace(facts.lane, inherited={})))
