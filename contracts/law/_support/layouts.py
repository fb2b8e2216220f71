"""What mesh checks share: which axes a layout has, declining a layout, judging a grid, reading a refusal's numbers."""

import re
from dataclasses import replace

from contracts.law._support.brute_force import flaw_of_grid, flaw_of_partition
from contracts.spec import Degrees, Execution, Group, Layout, NotOffered, Party, Topology

REQUIRED: dict[Layout, tuple[str, ...]] = {
    "own-axis": ("pp", "dp", "tp", "ep"),
    "borrowed": ("pp", "dp", "cp", "tp", "ep", "edp"),
}
OPTIONAL: dict[Layout, tuple[str, ...]] = {"own-axis": ("cp", "etp", "edp", "dp_cp"), "borrowed": ("etp", "dp_cp")}
GRIDS: dict[Layout, tuple[tuple[str, ...], ...]] = {
    "own-axis": (("pp", "dp", "ep", "tp"), ("pp", "edp", "ep", "etp")),
    "borrowed": (("pp", "dp", "cp", "tp"), ("pp", "edp", "ep", "etp")),
}


def needs_layout(stack: Party, layout: Layout) -> None:
    """Leave a case aside when the stack does not build its layout.

    Raises:
        NotOffered: when it does not; both layouts are legal, so that is no violation.
    """
    if layout not in stack.layouts:
        raise NotOffered(f"{stack.name} does not build the {layout} layout", "stack")


def layout_of(stack: Party, layout: Layout, degrees: Degrees) -> Layout:
    """The layout in which a stack is asked: without expert parallel, the two layouts have the same ranks.

    Raises:
        NotOffered: when there is expert parallel and the stack does not build the layout.
    """
    if degrees.ep == 1 and layout not in stack.layouts:
        return min(stack.layouts, default=layout)
    needs_layout(stack, layout)
    return layout


def in_a_layout_of(stack: Party, execution: Execution) -> Execution:
    """The execution in that layout.

    Raises:
        NotOffered: when there is expert parallel and the stack does not build the layout.
    """
    return replace(execution, layout=layout_of(stack, execution.layout, execution.degrees))


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


def assert_partitions(answer: Topology, layout: Layout, degrees: Degrees) -> None:
    """Every reported axis partitions the world into groups of the size it has."""
    for axis in (*REQUIRED[layout], *(axis for axis in OPTIONAL[layout] if axis in answer.groups)):
        groups = groups_of(answer, axis)
        flaw = flaw_of_partition(groups, answer.world)
        assert flaw is None, f"{axis} does not partition the world: {flaw} ({degrees} on {answer.world} ranks)"
        size = answer.sizes.get(axis)
        assert size == len(groups[0]), f"{axis} has size {size} and groups of {len(groups[0])} ({degrees})"


def assert_grid(answer: Topology, layout: Layout, degrees: Degrees) -> None:
    """The axes give every rank coordinates of its own; the experts' axes are judged where all are reported."""
    for axes in GRIDS[layout]:
        if "edp" in axes and not {"edp", "etp"} <= answer.groups.keys():
            continue
        for axis in axes:
            groups_of(answer, axis)
        flaw = flaw_of_grid(answer.groups, axes, answer.world)
        assert flaw is None, f"{', '.join(axes)} are no grid: {flaw} ({degrees} on {answer.world} ranks)"
