"""The calls that create process groups: which groups, how often and in which order, on every rank.

`new_group` is collective over the world: a rank that skips a call because it is no member, or makes two calls in
another order, leaves its peers waiting inside the call. Members are compared as sets; a group of one rank and the group
of the whole world need no call of their own.
"""

from contracts.contract import contract
from contracts.law._support.layouts import groups_of, needs_layout
from contracts.spec import Degrees, GroupCall, Layout, Stack, chosen

Members = tuple[int, ...]

MESHES: dict[str, tuple[Degrees, int, Layout]] = {
    # The layout of the bring-up: PP beside TP, and the DP group made before PP had the members of the PP group.
    "own-axis-pp2-tp2-on-4": (Degrees(pp=2, tp=2, sp=True), 4, "own-axis"),
    "own-axis-pp2-tp4-ep3": (Degrees(pp=2, tp=4, ep=3), 48, "own-axis"),
    "own-axis-tp2-ep2-etp1": (Degrees(tp=2, ep=2, etp=1, sp=True), 24, "own-axis"),
    "borrowed-pp2-tp2-on-4": (Degrees(pp=2, tp=2, sp=True), 4, "borrowed"),
    "borrowed-pp3-cp2-tp2-ep4": (Degrees(pp=3, cp=2, tp=2, ep=4), 24, "borrowed"),
    "borrowed-pp2-tp2-ep6-etp1": (Degrees(pp=2, tp=2, ep=6, etp=1, sp=True), 24, "borrowed"),
}


@contract("TOPO-06", asks="group_calls", cases=MESHES, source="F04")
def every_rank_makes_the_same_calls(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """Every rank creates every group in the same order, including groups that it is not a member of.

    Creating only one's own groups looks like a saving, and hangs in the first `new_group`.
    """
    needs_layout(stack, layout)
    first = _members(stack.group_calls(degrees, world, layout, 0))
    for rank in range(1, world):
        other = _members(stack.group_calls(degrees, world, layout, rank))
        for index, (mine, its) in enumerate(zip(first, other, strict=False)):
            assert mine == its, f"call {index} creates {list(mine)} on rank 0 and {list(its)} on rank {rank}"
        shared = min(len(first), len(other))
        next_call = [list(members) for members in (*first[shared:], *other[shared:])][:1]
        assert len(first) == len(other), (
            f"rank 0 makes {len(first)} calls and rank {rank} makes {len(other)}: one of them never creates {next_call}"
        )


@contract("TOPO-06a", asks=("group_calls", "topology"), cases=MESHES, source="F04")
def every_group_of_the_mesh_is_created(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """Every group of the mesh with more than one rank, except the whole world, is created by a call.

    A group that nobody created falls back to the world, and a boundary exchange of one replica waits for another
    replica.
    """
    needs_layout(stack, layout)
    created = {frozenset(call.members) for call in stack.group_calls(degrees, world, layout, world - 1)}
    for axis, groups in stack.topology(degrees, world, layout).groups.items():
        for members in groups:
            if 1 < len(members) < world:
                assert frozenset(members) in created, f"no call creates the {axis} group {list(members)}"


@contract("TOPO-07", asks="group_calls", cases=MESHES, source="bringup", conventions=("communicators",))
def no_members_are_grouped_twice(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """No two calls create a group with the same members: an axis reuses the group that already covers them.

    The bring-up created a PP group beside a DP group of the same ranks, and with compile on it sometimes hung in
    `new_group`. Reusing the DP group removed the hang. A stack that declares one group for each purpose makes each call
    for one purpose, and no call twice.
    """
    needs_layout(stack, layout)
    if chosen(stack, "communicators") == "purpose":
        seen: set[tuple[frozenset[int], str]] = set()
        for call in stack.group_calls(degrees, world, layout, world - 1):
            served = " and ".join(call.axes)
            assert len(call.axes) == 1, f"one group {sorted(call.members)} serves {served}, which are two purposes"
            assert (frozenset(call.members), served) not in seen, (
                f"{sorted(call.members)} is created twice for {served}"
            )
            seen.add((frozenset(call.members), served))
        return
    made: dict[frozenset[int], GroupCall] = {}
    for call in stack.group_calls(degrees, world, layout, world - 1):
        before = made.setdefault(frozenset(call.members), call)
        assert before is call, (
            f"{sorted(call.members)} is created twice: for {', '.join(before.axes)} and for {', '.join(call.axes)}"
        )


@contract("TOPO-07a", asks=("group_calls", "topology"), cases=MESHES, source="bringup")
def a_shared_group_has_the_members_of_each_axis(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """A group that serves an axis has the members of that axis: reuse needs equal members, not an equal size.

    Reuse was the fix for duplicate groups. Reusing a group with other ranks sends activations to another replica.
    """
    needs_layout(stack, layout)
    answer = stack.topology(degrees, world, layout)
    for call in stack.group_calls(degrees, world, layout, world - 1):
        for axis in call.axes:
            if axis not in answer.groups:
                continue  # a group for something that is no axis, such as embeddings
            known = {frozenset(members) for members in groups_of(answer, axis)}
            fits = frozenset(call.members) in known
            assert fits, f"{axis} is served by {sorted(call.members)}, which is no {axis} group"


def _members(calls: tuple[GroupCall, ...]) -> list[Members]:
    return [tuple(sorted(call.members)) for call in calls]
