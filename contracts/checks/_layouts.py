"""What mesh checks share: declining a layout, naming an axis that is missing, reading the numbers of a refusal."""

from __future__ import annotations

import re

from contracts.spec.errors import NotOffered
from contracts.spec.stack import Stack
from contracts.spec.topology import Group, Layout, Topology


def needs_layout(stack: Stack, layout: Layout) -> None:
    """Leave a case aside when the stack does not build its layout.

    Raises:
        NotOffered: when it does not; both layouts are legal, so that is no violation.
    """
    if layout not in stack.layouts:
        raise NotOffered(f"{stack.name} does not build the {layout} layout")


def groups_of(topology: Topology, axis: str) -> tuple[Group, ...]:
    """The groups of an axis that every stack of the layout must report.

    Raises:
        AssertionError: when it is not reported.
    """
    assert axis in topology.groups, f"axis {axis} is not reported; reported are {', '.join(topology.groups)}"
    return topology.groups[axis]


def numbers_in(text: object) -> set[int]:
    """Every whole number that a message names."""
    return {int(number) for number in re.findall(r"\d+", str(text))}
