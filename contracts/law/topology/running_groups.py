"""Process groups of a running job: their members, sums over them, the order of their creation, and that none is left
over.

Every rank of a running job builds a mesh and checks what it holds. Members are compared with groups worked out by hand.
A reduction is compared with the sum that those members give: each rank contributes 2^rank, so every set of members has
its own sum, and a wrong handle shows in the value even where every name is right.
"""

from collections import Counter

from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.law._support.layouts import layout_of
from contracts.law._support.pipeline_run import AHEAD, BESIDE_DP, HALVES, IN_TWO, Cell, cell, messages_seen
from contracts.spec import Degrees, Execution, Group, Layout, LiveMesh, Messaging, NotOffered, Recipe, World, chosen

Groups = dict[str, tuple[Group, ...]]


def _alone(world: int) -> tuple[Group, ...]:
    return tuple((rank,) for rank in range(world))


PAIRS, STRIDE_2 = ((0, 1), (2, 3)), ((0, 2), (1, 3))
PAIRS_8 = ((0, 1), (2, 3), (4, 5), (6, 7))
FOURS, STRIDE_4 = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7))
STRIDE_2_OF_8 = ((0, 2), (1, 3), (4, 6), (5, 7))
ALL_3, ALL_4 = ((0, 1, 2),), ((0, 1, 2, 3),)

# degrees, world, layout, axis → its groups by hand. PP is outermost, TP innermost, stages begin past rank 0.
LIVE: dict[str, tuple[Degrees, int, Layout, Groups]] = {
    "own-axis-tp2-on-2": (
        Degrees(tp=2), 2, "own-axis",
        {"pp": _alone(2), "dp": _alone(2), "ep": _alone(2), "tp": ((0, 1),)},
    ),
    "own-axis-dp3": (
        Degrees(), 3, "own-axis",
        {"pp": _alone(3), "dp": ALL_3, "ep": _alone(3), "tp": _alone(3)},
    ),
    # The layout of the bring-up: PP beside TP leaves no ranks for DP.
    "own-axis-pp2-tp2-on-4": (
        Degrees(pp=2, tp=2, sp=True), 4, "own-axis",
        {"pp": STRIDE_2, "dp": _alone(4), "ep": _alone(4), "tp": PAIRS},
    ),
    # With etp 1 a TP rank holds whole experts, so an expert is replicated over the TP group.
    "own-axis-ep2-tp2-etp1-on-4": (
        Degrees(ep=2, tp=2, etp=1), 4, "own-axis",
        {"pp": _alone(4), "dp": _alone(4), "ep": STRIDE_2, "tp": PAIRS, "edp": PAIRS},
    ),
    "borrowed-cp2-ep2-on-4": (
        Degrees(cp=2, ep=2), 4, "borrowed",
        {"pp": _alone(4), "dp": STRIDE_2, "cp": PAIRS, "tp": _alone(4), "ep": PAIRS, "edp": STRIDE_2,
         "dp_cp": ALL_4},
    ),
    # EP is carved out of dp and tp ranks: its group is the world.
    "borrowed-tp2-ep4-etp1-on-4": (
        Degrees(tp=2, ep=4, etp=1), 4, "borrowed",
        {"pp": _alone(4), "dp": STRIDE_2, "cp": _alone(4), "tp": PAIRS, "ep": ALL_4, "edp": _alone(4)},
    ),
    "own-axis-2x4": (
        Degrees(tp=4), 8, "own-axis",
        {"pp": _alone(8), "dp": STRIDE_4, "ep": _alone(8), "tp": FOURS},
    ),
    "borrowed-pp2-tp2-ep4-etp1-on-8": (
        Degrees(pp=2, tp=2, ep=4, etp=1), 8, "borrowed",
        {"pp": STRIDE_4, "dp": STRIDE_2_OF_8, "cp": _alone(8), "tp": PAIRS_8, "ep": FOURS, "edp": _alone(8)},
    ),
    "borrowed-pp2-cp2-ep2-on-8": (
        Degrees(pp=2, cp=2, ep=2), 8, "borrowed",
        {"pp": STRIDE_4, "dp": STRIDE_2_OF_8, "cp": PAIRS_8, "tp": _alone(8), "ep": PAIRS_8, "edp": STRIDE_2_OF_8,
         "dp_cp": FOURS},
    ),
}  # fmt: skip

MESHES = {name: (degrees, world, layout) for name, (degrees, world, layout, _) in LIVE.items()}


@contract("TOPO-05d", asks="live_mesh", cases=LIVE, source="F04", tier="dist")
def a_live_group_has_the_members_of_the_mesh(
    stack: World, degrees: Degrees, world: int, layout: Layout, expected: Groups
) -> None:
    """In a running job, the group that a rank holds on an axis has exactly the members that the mesh puts there.

    A mesh built with its dimensions in another order gave each axis its right size but other peers. Nothing failed.
    """
    mesh = _asked(stack, degrees, world, layout)
    for axis, mine in _mine(mesh, expected).items():
        found = sorted(mesh.groups[axis])
        assert found == mine, f"rank {here().rank} holds {found} as its {axis} group, expected {mine}"


@contract("TOPO-05f", asks="live_mesh", cases=LIVE, source="F04; Megatron-Core", tier="dist")
def a_sum_over_a_live_group_is_that_of_its_members(
    stack: World, degrees: Degrees, world: int, layout: Layout, expected: Groups
) -> None:
    """An all-reduce over an axis sums the contribution of each member of the group exactly once, and of no other rank.

    A context-parallel exchange that left out `group=` ran on the world: the right group existed but was not used.
    """
    mesh = _asked(stack, degrees, world, layout)
    for axis, mine in _mine(mesh, expected).items():
        total = sum(2**rank for rank in mine)
        found = mesh.sums.get(axis)
        assert found == total, (
            f"the sum of 2^rank over the {axis} group {mine} of rank {here().rank} is {found}, expected {total}"
        )


@contract("TOPO-06d", asks="live_mesh", cases=MESHES, source="F04", tier="dist")
def the_ranks_of_a_world_make_their_groups_in_one_order(
    stack: World, degrees: Degrees, world: int, layout: Layout
) -> None:
    """The ranks of a running job create the same groups in the same order, including groups that they are not members
    of.

    Creating only one's own groups works while they happen to be disjoint. Overlapping groups made in two orders
    deadlock.
    """
    mesh = _asked(stack, degrees, world, layout)
    every = [[sorted(members) for members in calls] for calls in gathered(mesh.calls)]
    for rank, other in enumerate(every):
        for index, (first, its) in enumerate(zip(every[0], other, strict=False)):
            assert first == its, f"call {index} creates {first} on rank 0 and {its} on rank {rank}"
        assert len(every[0]) == len(other), f"rank 0 creates {len(every[0])} groups and rank {rank} {len(other)}"
    distinct = {tuple(sorted(members)) for members in mesh.groups.values()}
    needed = {members for members in distinct if 1 < len(members) < world}
    missing = needed - {tuple(sorted(members)) for members in (*mesh.calls, *mesh.before)}
    assert not missing, f"rank {here().rank} uses {sorted(missing)}, which it never created"


@contract(
    "TOPO-07d", asks="live_mesh", cases=MESHES, source="bringup", tier="dist", conventions=("communicators",)
)  # fmt: skip
def a_rank_holds_one_group_for_the_same_members(stack: World, degrees: Degrees, world: int, layout: Layout) -> None:
    """In a running job no rank holds two groups with the same members: an axis uses the group that already exists.

    The bring-up held a PP group beside a DP group of the same ranks, and sometimes hung in `new_group`. A stack that
    declares one group for each purpose holds one for each axis, and none that no call created; an axis over all ranks
    may use the default group.
    """
    mesh = _asked(stack, degrees, world, layout)
    found_before = Counter(frozenset(members) for members in mesh.before)
    if chosen(stack, "communicators") == "purpose":
        held, made, axes = (
            Counter(frozenset(members) for members in groups)
            for groups in (mesh.held, mesh.calls, mesh.groups.values())
        )
        for members in (each for each in axes if len(each) > 1):
            own = held[members] - found_before[members]
            words = f"rank {here().rank} holds {own} groups of {sorted(members)}"
            enough = own >= axes[members] or found_before[members]  # torch's meshes take the default group for all
            assert enough, f"{words} for {axes[members]} axes, of which each has its own"
            assert own == made[members], f"{words}, and {made[members]} calls created one"
        return
    for members, count in Counter(frozenset(members) for members in mesh.held).items():
        allowed = max(1, found_before[members])
        assert count <= allowed, f"rank {here().rank} holds {count} groups of {sorted(members)}"


@contract("TOPO-07e", asks="live_mesh", cases=MESHES, source="F04", tier="dist")
def a_mesh_that_is_closed_leaves_nothing_behind(stack: World, degrees: Degrees, world: int, layout: Layout) -> None:
    """After a mesh was built and closed twice, exactly the process groups exist that existed before.

    Each NCCL communicator keeps device memory and a thread. A run that rebuilds its mesh at each resume runs out of
    them.
    """
    first = _asked(stack, degrees, world, layout)
    if first.after is None:
        raise NotOffered(f"{stack.name} closes no mesh before the process ends", "stack")
    _nothing_is_left(first.before, first.after)
    again = _asked(stack, degrees, world, layout)
    assert again.after is not None, "the first mesh was closed, and the second is not"
    _nothing_is_left(first.before, again.after)
    assert again.calls == first.calls, f"the second mesh makes {len(again.calls)} groups, the first {len(first.calls)}"


def _nothing_is_left(before: tuple[Group, ...], after: tuple[Group, ...]) -> None:
    found, left = Counter(before), Counter(after)
    more, gone = list((left - found).elements()), list((found - left).elements())
    assert not more, f"rank {here().rank} is left with {len(more)} groups of closed meshes: {_shown(more)}"
    assert not gone, f"rank {here().rank} has lost {_shown(gone)}, which it held before the mesh was built"


def _asked(stack: World, degrees: Degrees, world: int, layout: Layout) -> LiveMesh:
    return stack.live_mesh(degrees, world, layout_of(stack, layout, degrees), 2 ** here().rank)


def _mine(mesh: LiveMesh, expected: Groups) -> dict[str, list[int]]:
    """Axis → the members of this rank's group on it, worked out by hand."""
    rank = here().rank
    for axis in expected:
        assert axis in mesh.groups, f"rank {rank} holds no {axis} group; it holds {', '.join(mesh.groups)}"
    return {axis: list(next(group for group in groups if rank in group)) for axis, groups in expected.items()}


def _shown(groups: list[Group]) -> str:
    return ", ".join(str(list(members)) for members in groups)


COVERED: dict[str, Cell] = {"the-world": cell(HALVES, IN_TWO), "two-of-four": cell(AHEAD, BESIDE_DP)}
"""Which ranks one pipeline covers: all of them, or two of four."""


@contract("TOPO-07f", asks="messages", cases=COVERED, source="bringup", tier="dist")
def a_pipeline_makes_no_second_group(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """A run has one process group for each set of members: the pipeline uses the group that already covers its ranks.

    The bring-up made a PP group beside the DP group of the same ranks, and sometimes hung in `new_group`.
    """
    seen = messages_seen(stack, recipe, execution)
    made = Counter(frozenset(group) for group in seen.held) - Counter(frozenset(group) for group in seen.before)
    whole = frozenset(range(world))
    assert whole not in made, f"rank {here().rank} makes a group of all {world} ranks besides the default group"
    for members, count in made.items():
        assert count == 1, f"rank {here().rank} makes {count} groups of {sorted(members)}"
