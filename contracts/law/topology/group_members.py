"""Groups of the mesh: the members of each axis's groups, and the mesh that they form.

Groups are compared as sets of members; their order does not matter. Every stack must report the axes pp, dp, tp and ep,
and in the borrowed layout cp and edp as well; etp and dp_cp are checked where they are reported.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.brute_force import borrowed, drawn, is_legal
from contracts.law._support.layouts import REQUIRED, assert_grid, assert_partitions, groups_of, needs_layout
from contracts.spec import Degrees, Layout, Refused, Stack, Topology

UNEVEN: dict[str, tuple[Degrees, int, Layout]] = {  # non-square, odd, and with stages that start past rank 0
    "own-axis-2x4": (Degrees(tp=4), 8, "own-axis"),
    "own-axis-pp2-tp2-ep3": (Degrees(pp=2, tp=2, ep=3), 60, "own-axis"),
    "own-axis-pp3-tp4-ep2-etp1": (Degrees(pp=3, tp=4, ep=2, etp=1), 48, "own-axis"),
    "borrowed-2x4": (Degrees(tp=4), 8, "borrowed"),
    "borrowed-pp3-cp2-tp2-ep4": (Degrees(pp=3, cp=2, tp=2, ep=4), 72, "borrowed"),
    "borrowed-pp2-tp2-ep6-etp1": (Degrees(pp=2, tp=2, ep=6, etp=1), 48, "borrowed"),
    "borrowed-etp-above-tp": (Degrees(pp=2, tp=2, ep=3, etp=4), 48, "borrowed"),
}


@contract("TOPO-05", asks="topology", cases=UNEVEN, source="F04")
def groups_of_an_axis_partition_the_world(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """The groups of each axis partition the world: they are disjoint, cover every rank, and have the size of the axis.

    A rank outside every group waits for peers that never come. A rank in two groups reduces some gradients twice.
    """
    needs_layout(stack, layout)
    assert_partitions(stack.topology(degrees, world, layout), layout, degrees)


@contract("TOPO-05a", asks="topology", cases=UNEVEN, source="F04")
def coordinates_are_a_bijection(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """Groups of different axes share at most one rank, and together they give every rank its own coordinates.

    Each axis can partition the world while the mesh is still wrong: a dp and a tp group that share two ranks average
    gradients of different shards.
    """
    needs_layout(stack, layout)
    assert_grid(stack.topology(degrees, world, layout), layout, degrees)


RANKS: dict[str, tuple[Degrees, int, Layout, dict[str, list[list[int]]]]] = {
    # 2 × 4: every group by hand
    "own-axis-2x4": (
        Degrees(tp=4), 8, "own-axis",
        {"tp": [[0, 1, 2, 3], [4, 5, 6, 7]], "dp": [[0, 4], [1, 5], [2, 6], [3, 7]]},
    ),
    # The stack chooses the order of dp and ep between themselves; PP is outermost and TP innermost.
    "own-axis-pp2-tp2-ep2": (
        Degrees(pp=2, tp=2, ep=2), 16, "own-axis",
        {"pp": [[0, 8], [3, 11], [7, 15]], "tp": [[0, 1], [6, 7], [14, 15]]},
    ),
    "own-axis-pp3-tp2": (
        Degrees(pp=3, tp=2), 12, "own-axis",
        {"pp": [[0, 4, 8], [3, 7, 11]], "dp": [[0, 2], [5, 7], [9, 11]], "tp": [[4, 5], [10, 11]]},
    ),
    # Measured on Megatron-Core's own initialiser
    "borrowed-etp1-on-64": (
        Degrees(pp=2, tp=2, ep=4, etp=1), 64, "borrowed",
        {"pp": [[0, 32], [31, 63]], "ep": [[0, 1, 2, 3], [60, 61, 62, 63]], "tp": [[62, 63]],
         "edp": [[0, 4, 8, 12, 16, 20, 24, 28], [35, 39, 43, 47, 51, 55, 59, 63]]},
    ),
    "borrowed-follows-tp-on-64": (
        Degrees(pp=2, tp=2, ep=4), 64, "borrowed",
        {"pp": [[0, 32]], "ep": [[0, 2, 4, 6], [41, 43, 45, 47]], "edp": [[0, 8, 16, 24], [39, 47, 55, 63]],
         "dp": [[33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63]]},
    ),
    "borrowed-cp2-ep4-etp1-on-32": (
        Degrees(pp=2, cp=2, tp=2, ep=4, etp=1), 32, "borrowed",
        {"pp": [[5, 21]], "tp": [[20, 21]], "cp": [[20, 22], [21, 23]], "dp": [[17, 21, 25, 29]],
         "ep": [[4, 5, 6, 7], [20, 21, 22, 23]], "edp": [[2, 6, 10, 14], [17, 21, 25, 29]]},
    ),
}  # fmt: skip


@contract("TOPO-05b", asks="topology", cases=RANKS, source="F04; Megatron-Core, measured")
def pipeline_is_outermost_and_tensor_innermost(
    stack: Stack, degrees: Degrees, world: int, layout: Layout, expected: dict[str, list[list[int]]]
) -> None:
    """Groups hold exactly the ranks of a mesh whose slowest axis is PP and whose fastest axis is TP.

    A mesh built in the order dp, tp, pp gave every axis its right size, but put pipeline neighbours on adjacent ranks
    and TP groups across nodes. Nothing failed; it was slow, and checkpoints landed on the wrong stages.
    """
    needs_layout(stack, layout)
    answer = stack.topology(degrees, world, layout)
    for axis, some in expected.items():
        found = {rank: sorted(members) for members in groups_of(answer, axis) for rank in members}
        for members in some:
            mine = found.get(members[0])
            assert mine == members, f"the {axis} group of rank {members[0]} is {mine}, expected {members}"


DRAWN_BORROWED = {f"drawn-{first:03}-{first + 49:03}": (first, first + 50) for first in range(0, 300, 50)}


@contract("TOPO-05c", asks="topology", cases=DRAWN_BORROWED, source="F04; Megatron-Core's order", layout="borrowed")
def drawn_topologies_equal_their_enumeration(stack: Stack, first: int, end: int) -> None:
    """Of 300 random sets of degrees up to 512 ranks, a stack accepts exactly those whose axes tile the world. For each
    of them the groups of every axis equal an enumeration of the ranks in the order tp-cp-ep-dp-pp.

    A validator that multiplied EP into the model-parallel size refused legal layouts and accepted illegal ones.
    """
    for degrees, world in drawn("borrowed")[first:end]:
        _as_enumerated(stack, degrees, world)


@contract("TOPO-05g", asks="topology", cases=DRAWN_BORROWED, source="F04", layout="borrowed")
def drawn_topologies_of_whole_experts_equal_their_enumeration(stack: Stack, first: int, end: int) -> None:
    """Of the same 300 random sets of degrees, with expert TP 1 where EP is active, a stack accepts exactly those whose
    axes tile the world, with the groups of the enumeration.

    EP then borrows the tensor-parallel ranks first, so its groups are runs of adjacent ranks.
    """
    for degrees, world in drawn("borrowed")[first:end]:
        _as_enumerated(stack, replace(degrees, etp=1 if degrees.ep > 1 else 0), world)


def _as_enumerated(stack: Stack, degrees: Degrees, world: int) -> None:
    """Check that legal degrees are accepted with the groups of the enumeration, and illegal ones refused."""
    answer = _accepted(stack, degrees, world, "borrowed")
    if answer is None:
        return
    for axis, expected in borrowed(degrees, world).items():
        if axis not in REQUIRED["borrowed"] and axis not in answer.groups:
            continue
        found = {frozenset(members) for members in groups_of(answer, axis)}
        odd = sorted(sorted(members) for members in found - expected)
        lost = sorted(sorted(members) for members in expected - found)
        assert not odd, f"{odd[0]} is no {axis} group of {degrees} on {world} ranks"
        assert not lost, f"the {axis} group {lost[0]} of {degrees} on {world} ranks is missing"


DRAWN_OWN_AXIS = {f"drawn-{first:03}-{first + 99:03}": (first, first + 100) for first in range(0, 300, 100)}


@contract("TOPO-05e", asks="topology", cases=DRAWN_OWN_AXIS, source="F04", layout="own-axis")
def drawn_own_axis_topologies_are_grids(stack: Stack, first: int, end: int) -> None:
    """Of 300 random sets of degrees up to 512 ranks, a stack accepts exactly those whose axes tile the world. Each of
    them is a grid: every axis partitions the world, and coordinates are a bijection.
    """
    for degrees, world in drawn("own-axis")[first:end]:
        answer = _accepted(stack, degrees, world, "own-axis")
        if answer is not None:
            assert_partitions(answer, "own-axis", degrees)
            assert_grid(answer, "own-axis", degrees)


NODES: dict[str, tuple[Degrees, int, Layout]] = {
    "own-axis-pp4-tp8": (Degrees(pp=4, tp=8), 64, "own-axis"),
    "own-axis-pp2-tp4-ep3": (Degrees(pp=2, tp=4, ep=3), 48, "own-axis"),
    "borrowed-pp2-cp2-tp4": (Degrees(pp=2, cp=2, tp=4), 48, "borrowed"),
    "borrowed-pp3-tp2-etp8": (Degrees(pp=3, tp=2, ep=2, etp=8), 48, "borrowed"),
}


@contract("TOPO-08", asks="topology", cases=NODES, source="naming; playbook")
def tensor_groups_stay_inside_a_node(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """Every TP group, also that of experts, lies inside one node of eight GPUs, which NVSwitch connects.

    A TP group across nodes still computes the right numbers, but uses the network several times per layer.
    """
    needs_layout(stack, layout)
    answer = stack.topology(degrees, world, layout)
    for axis in ("tp", "etp"):
        for members in groups_of(answer, "tp") if axis == "tp" else answer.groups.get(axis, ()):
            nodes = sorted({rank // 8 for rank in members})
            assert len(nodes) == 1, f"{axis} group {list(members)} spans nodes {nodes}"


def _accepted(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> Topology | None:
    """The topology of legal degrees; None for illegal degrees that were refused."""
    legal = is_legal(degrees, world, layout)
    answer: Topology | None = None
    words = ""
    try:
        answer = stack.topology(degrees, world, layout)
    except Refused as refused:
        words = str(refused)
    if legal:
        assert answer is not None, f"{degrees} on {world} ranks is legal and was refused: {words}"
    else:
        assert answer is None, f"{degrees} on {world} ranks is illegal and was accepted"
    return answer
