"""Gradient reductions: over which ranks a gradient is summed, and by what the sum is divided.

Dense and expert parameters have separate cases. Ranks are compared as sets.
"""

from contracts.contract import contract
from contracts.law._support.layouts import groups_of, needs_layout
from contracts.spec import Degrees, Group, Kind, Layout, Stack

Mesh = tuple[Degrees, int, Layout]
Sum = tuple[list[int], int]  # the ranks that are summed over, and the divisor

CP2_TP2_EP4: Mesh = (Degrees(pp=2, cp=2, tp=2, ep=4, etp=1, sp=True), 32, "borrowed")
FOLLOWS_TP: Mesh = (Degrees(pp=2, tp=2, ep=4, sp=True), 64, "borrowed")
NO_DP: Mesh = (Degrees(cp=4, tp=2, ep=4, sp=True), 8, "borrowed")
ETP_ABOVE_TP: Mesh = (Degrees(tp=2, ep=3, etp=4, sp=True), 24, "borrowed")
ETP1_ALONE: Mesh = (Degrees(tp=2, etp=1, sp=True), 4, "borrowed")

DENSE: dict[str, tuple[Mesh, int, Sum]] = {  # mesh, rank, its sum: the ranks of its stage with its TP index
    "own-axis-2x4": ((Degrees(tp=4, sp=True), 8, "own-axis"), 6, ([2, 6], 2)),
    "own-axis-pp3-tp2": ((Degrees(pp=3, tp=2), 12, "own-axis"), 9, ([9, 11], 2)),
    "own-axis-singleton": ((Degrees(pp=2, tp=2), 4, "own-axis"), 2, ([2], 1)),
    "borrowed-cp2-tp2-ep4": (CP2_TP2_EP4, 5, ([1, 3, 5, 7, 9, 11, 13, 15], 8)),
    "borrowed-last-stage": (CP2_TP2_EP4, 22, ([16, 18, 20, 22, 24, 26, 28, 30], 8)),
    "borrowed-cp-without-dp": (NO_DP, 3, ([1, 3, 5, 7], 4)),
    "borrowed-etp-above-tp": (ETP_ABOVE_TP, 7, ([1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23], 12)),
}


@contract("TOPO-09", asks="gradient_reduction", cases=DENSE, source="bringup; F01")
def a_dense_gradient_is_averaged_over_readers_of_other_data(stack: Stack, mesh: Mesh, rank: int, expected: Sum) -> None:
    """A dense gradient is summed over exactly the ranks that hold the same shard and read different data, and divided
    by their number. These are the data-parallel and context-parallel ranks of one stage and one TP index.

    A mean over only dp left every gradient cp times too large. A reducer that ran only with dp > 1 never ran for cp 4
    with dp 1, and the four replicas drifted apart.
    """
    _sums(stack, mesh, rank, "dense", expected)


EXPERT: dict[str, tuple[Mesh, int, Sum]] = {  # mesh, rank, its sum: holders of its expert shard, and dp · cp
    "cp2-tp2-ep4-etp1": (CP2_TP2_EP4, 5, ([1, 5, 9, 13], 8)),
    "last-stage": (CP2_TP2_EP4, 22, ([18, 22, 26, 30], 8)),
    "etp-follows-tp": (FOLLOWS_TP, 33, ([33, 41, 49, 57], 16)),
    "one-holder": (NO_DP, 3, ([3], 4)),
    "etp-above-tp": (ETP_ABOVE_TP, 7, ([7, 19], 12)),
    "etp1-without-ep": (ETP1_ALONE, 1, ([0, 1, 2, 3], 2)),
}


@contract("TOPO-09a", asks="gradient_reduction", cases=EXPERT, source="bringup; F01; Megatron-Core", layout="borrowed")
def an_expert_gradient_is_divided_by_the_readers_of_data(stack: Stack, mesh: Mesh, rank: int, expected: Sum) -> None:
    """An expert gradient is summed over the ranks that hold the same expert shard, and divided by dp · cp, the number
    of ranks that read different data, not by the number of ranks that hold the shard.

    Every expert already sums over the tokens that its whole EP group sent it. Dividing by the number of holders makes
    expert gradients too large by the EP degree. Adam hides the factor, and only convergence shows it.
    """
    _sums(stack, mesh, rank, "expert", expected)


OWN_AXIS: dict[str, tuple[Degrees, int, int, int]] = {  # degrees, world, rank → divisor: world / (pp · tp · ep)
    "pp2-tp2-ep3": (Degrees(pp=2, tp=2, ep=3, sp=True), 36, 25, 3),
    "tp4-ep2-etp1": (Degrees(tp=4, ep=2, etp=1, sp=True), 24, 13, 3),
    "pp3-tp2-ep4-etp1": (Degrees(pp=3, tp=2, ep=4, etp=1, sp=True), 48, 35, 2),
}


@contract("TOPO-09b", asks=("gradient_reduction", "topology"), cases=OWN_AXIS, source="bringup; F01", layout="own-axis")
def ep_ranks_of_one_batch_are_not_averaged(
    stack: Stack, degrees: Degrees, world: int, rank: int, expected: int
) -> None:
    """If EP is an axis of its own, the ranks of an EP group read one batch, so dense and expert gradients are summed
    over the rank's dp group and divided by dp. With etp 1, TP ranks hold the same experts and see different tokens, so
    an expert gradient is also summed over the dp groups of the TP peers.

    The divisor of the borrowed layout counts EP ranks as readers of data, and here shrinks every gradient by the EP
    degree.
    """
    answer = stack.topology(degrees, world, "own-axis")
    mine = set(_group_of(rank, groups_of(answer, "dp")))
    _sums(stack, (degrees, world, "own-axis"), rank, "dense", (sorted(mine), expected))
    if degrees.etp == 1:
        mine = {
            peer for near in _group_of(rank, groups_of(answer, "tp")) for peer in _group_of(near, answer.groups["dp"])
        }
    _sums(stack, (degrees, world, "own-axis"), rank, "expert", (sorted(mine), expected))


AGREED: dict[str, Mesh] = {
    "own-axis-pp2-tp2-ep3": (Degrees(pp=2, tp=2, ep=3, sp=True), 24, "own-axis"),
    "own-axis-tp3-ep2-etp1": (Degrees(tp=3, ep=2, etp=1, sp=True), 18, "own-axis"),
    "borrowed-pp2-cp2-tp2-ep4-etp1": (Degrees(pp=2, cp=2, tp=2, ep=4, etp=1, sp=True), 16, "borrowed"),
    "borrowed-pp3-tp2-ep3": (Degrees(pp=3, tp=2, ep=3, sp=True), 18, "borrowed"),
}


@contract("TOPO-09c", asks="gradient_reduction", cases=AGREED, source="F01")
def members_of_a_sum_agree_on_it(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """The ranks over which a rank's gradient is summed include that rank, and each of them reports the same ranks and
    the same divisor.

    Offsets that ignore the pipeline stage put ranks of later stages into the sums of the first.
    """
    needs_layout(stack, layout)
    kinds: tuple[Kind, ...] = ("dense", "expert")
    for kind in kinds:
        sums = [stack.gradient_reduction(degrees, world, layout, rank, kind) for rank in range(world)]
        for rank, mine in enumerate(sums):
            assert rank in mine.ranks, f"rank {rank} is not in its own {kind} sum over {sorted(mine.ranks)}"
            for peer in mine.ranks:
                assert 0 <= peer < world, f"rank {rank} sums its {kind} gradient with rank {peer} of {world}"
                same = set(sums[peer].ranks) == set(mine.ranks) and sums[peer].divisor == mine.divisor
                assert same, (
                    f"rank {rank} sums its {kind} gradient over {sorted(mine.ranks)} / {mine.divisor}, "
                    f"rank {peer} over {sorted(sums[peer].ranks)} / {sums[peer].divisor}"
                )


def _sums(stack: Stack, mesh: Mesh, rank: int, kind: Kind, expected: Sum) -> None:
    degrees, world, layout = mesh
    needs_layout(stack, layout)
    found = stack.gradient_reduction(degrees, world, layout, rank, kind)
    ranks, divisor = expected
    assert sorted(found.ranks) == ranks, (
        f"the {kind} gradient of rank {rank} is summed over {sorted(found.ranks)}, expected {ranks} ({degrees})"
    )
    assert found.divisor == divisor, (
        f"the {kind} gradient of rank {rank} is divided by {found.divisor}, expected {divisor} ({degrees})"
    )


def _group_of(rank: int, groups: tuple[Group, ...]) -> Group:
    return next(members for members in groups if rank in members)
