"""The mesh contracts at real sizes: 8 to 65 536 ranks, simulated, in seconds.

An enumeration that is right on eight ranks may still be quadratic in the world size, or overflow a stride that eight
ranks never reach. Nothing is drawn here: each size has one mesh in which most axes exceed 1.
"""

from contracts.contract import contract
from contracts.law._support.layouts import assert_grid, assert_partitions, groups_of, needs_layout
from contracts.spec import Degrees, Kind, Layout, Stack, chosen

# Degrees, world, layout, and the data-parallel size they leave
SIZES: dict[str, tuple[Degrees, int, Layout, int]] = {
    "own-axis-8": (Degrees(tp=2, ep=2), 8, "own-axis", 2),
    "own-axis-512": (Degrees(pp=4, tp=8, ep=4), 512, "own-axis", 4),
    "own-axis-4096": (Degrees(pp=8, tp=8, ep=8), 4096, "own-axis", 8),
    "own-axis-65536": (Degrees(pp=16, tp=8, ep=16), 65536, "own-axis", 32),
    "borrowed-8": (Degrees(cp=2, tp=2, ep=4, etp=1), 8, "borrowed", 2),
    "borrowed-512": (Degrees(pp=4, cp=2, tp=8, ep=16, etp=1), 512, "borrowed", 8),
    "borrowed-4096": (Degrees(pp=8, cp=4, tp=8, ep=32, etp=1), 4096, "borrowed", 16),
    "borrowed-65536": (Degrees(pp=16, cp=8, tp=8, ep=64, etp=1), 65536, "borrowed", 64),
}


@contract("TOPO-11", asks="topology", cases=SIZES, source="playbook")
def the_mesh_is_a_grid_at_any_size(stack: Stack, degrees: Degrees, world: int, layout: Layout, dp: int) -> None:
    """From 8 to 65 536 ranks, every axis partitions the world, coordinates are a bijection, the DP size is the world
    size divided by the other axes, and TP groups stay inside a node.
    """
    needs_layout(stack, layout)
    answer = stack.topology(degrees, world, layout)
    assert answer.dp == dp, f"dp is {answer.dp}, expected {dp} ({degrees} on {world} ranks)"
    assert_partitions(answer, layout, degrees)
    assert_grid(answer, layout, degrees)
    for members in groups_of(answer, "tp"):
        first, last = min(members), max(members)
        assert first // 8 == last // 8, f"tp group {first} … {last} spans nodes {first // 8} and {last // 8}"


CALLS = {name: case[:3] for name, case in SIZES.items()}


@contract("TOPO-11a", asks="group_calls", cases=CALLS, source="playbook")
def calls_are_equal_at_any_size(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """From 8 to 65 536 ranks, the first and the last rank create the same groups in the same order."""
    needs_layout(stack, layout)
    first, last = (
        [call.members for call in stack.group_calls(degrees, world, layout, rank)] for rank in (0, world - 1)
    )
    for index, (mine, its) in enumerate(zip(first, last, strict=False)):
        assert mine == its or set(mine) == set(its), (
            f"call {index} creates {sorted(mine)[:9]} on rank 0, {sorted(its)[:9]} on rank {world - 1}"
        )
    assert len(first) == len(last), f"rank 0 makes {len(first)} calls, rank {world - 1} makes {len(last)}"


@contract("TOPO-11c", asks="group_calls", cases=CALLS, source="playbook", conventions=("communicators",))
def no_members_are_grouped_twice_at_any_size(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """From 8 to 65 536 ranks, no two calls create a group with the same members.

    Communicators cost memory on every rank, and at this size a second set has tens of thousands of them. A stack that
    declares one group for each purpose makes none twice for the same purpose.
    """
    needs_layout(stack, layout)
    each_purpose = chosen(stack, "communicators") == "purpose"
    calls = stack.group_calls(degrees, world, layout, world - 1)
    shared = sum(len(call.axes) > 1 for call in calls) if each_purpose else 0
    assert not shared, f"{shared} of {len(calls)} calls create a group for several purposes"
    made = [(frozenset(call.members), call.axes if each_purpose else ()) for call in calls]
    twice = len(made) - len(set(made))
    assert not twice, f"{twice} of {len(made)} calls create a group that an earlier call created"


# mesh, kind → the last rank's sum: its first rank, distance between neighbours, length; the divisor
SUMS: dict[str, tuple[tuple[Degrees, int, Layout], Kind, tuple[int, int, int], int]] = {
    "dense-8": ((SIZES["borrowed-8"][0], 8, "borrowed"), "dense", (1, 2, 4), 4),
    "expert-8": ((SIZES["borrowed-8"][0], 8, "borrowed"), "expert", (3, 4, 2), 4),
    "dense-4096": ((SIZES["borrowed-4096"][0], 4096, "borrowed"), "dense", (3591, 8, 64), 64),
    "expert-4096": ((SIZES["borrowed-4096"][0], 4096, "borrowed"), "expert", (3615, 32, 16), 64),
    "dense-65536": ((SIZES["borrowed-65536"][0], 65536, "borrowed"), "dense", (61447, 8, 512), 512),
    "expert-65536": ((SIZES["borrowed-65536"][0], 65536, "borrowed"), "expert", (61503, 64, 64), 512),
}


@contract("TOPO-11b", asks="gradient_reduction", cases=SUMS, source="playbook", layout="borrowed")
def sums_are_exact_at_any_size(
    stack: Stack, mesh: tuple[Degrees, int, Layout], kind: Kind, shape: tuple[int, int, int], divisor: int
) -> None:
    """From 8 to 65 536 ranks, the last rank's gradient is summed over exactly its replicas and divided by dp · cp.

    The last rank has the largest index on every axis, so every stride counts.
    """
    degrees, world, layout = mesh
    first, step, length = shape
    expected = set(range(first, first + step * length, step))
    found = stack.gradient_reduction(degrees, world, layout, world - 1, kind)
    odd, lost = sorted(set(found.ranks) - expected), sorted(expected.difference(found.ranks))
    assert not odd, f"rank {odd[0]} is in the {kind} sum of rank {world - 1}, which has {first}, {first + step}, …"
    assert not lost, f"rank {lost[0]} is missing from the {kind} sum of rank {world - 1}"
    assert len(found.ranks) == length, (
        f"the {kind} sum of rank {world - 1} names {len(found.ranks)} ranks, not {length}"
    )
    assert found.divisor == divisor, f"the {kind} gradient is divided by {found.divisor}, expected {divisor}"
