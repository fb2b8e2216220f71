"""Stacks that are right on one node and wrong at a large world size."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.topology import Degrees, GradientReduction, GroupCall, Kind, Layout, Mesh, Topology
from contracts.stacks.reference.stack import Reference


def _local(call: GroupCall) -> bool:
    """Whether all members live in one node of eight."""
    return len({member // 8 for member in call.members}) == 1


@mutant(of="TOPO-11", case="own-axis-512", says="dp is 16, expected 4", bugs=("DPS-01",))
class ForgetsPipelineAtSize(Reference):
    """DP is not divided by pp: nobody ran a pipeline on eight ranks, so nobody saw it."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        return replace(answer, dp=answer.dp * degrees.pp)


@mutant(of="TOPO-11", case="borrowed-4096", says="are no grid: a pp and a tp group share ranks")
class TruncatesStrides(Reference):
    """Strides are kept in one byte: above 256 ranks the stage wraps around onto its neighbours."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        stride = world // degrees.pp
        if stride < 256:
            return answer
        chunks = tuple(tuple(range(first, first + degrees.pp)) for first in range(0, world, degrees.pp))
        return replace(answer, groups={**answer.groups, "pp": chunks})


@mutant(of="TOPO-11", case="own-axis-4096", says="tp group 0 … 448 spans nodes 0 and 56")
class ZipsDataInnermost(Reference):
    """Builds the mesh in the order pp, tp, ep, dp: each axis has its size, and on one node every stride fits."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        axes = ("pp", "tp", "ep", "dp")
        mesh = Mesh(axes=axes, sizes=(degrees.pp, degrees.tp, degrees.ep, answer.dp))
        groups = {axis: mesh.groups(axis) for axis in axes}
        return replace(answer, groups={**groups, "etp": groups["tp"], "edp": groups["dp"]})


@mutant(of="TOPO-11a", case="borrowed-512", says="on rank 0, [504, 505, 506, 507, 508, 509, 510, 511] on rank 511")
class NodeLocalCalls(Reference):
    """Only a node's own ranks create a group inside it: on a single node all ranks agree."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> tuple[GroupCall, ...]:
        calls = super().group_calls(degrees, world, layout, rank)
        return tuple(call for call in calls if not _local(call) or call.members[0] // 8 == rank // 8)


@mutant(of="TOPO-11c", case="own-axis-4096", says="calls create a group that an earlier call created", bugs=("PG-09",))
class FreshGroupsForStages(Reference):
    """Creates the PP groups again after the mesh is built, one call per pipeline."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> tuple[GroupCall, ...]:
        calls = super().group_calls(degrees, world, layout, rank)
        return calls + tuple(call for call in calls if "pp" in call.axes)


@mutant(of="TOPO-11b", case="expert-4096", says="divided by 16, expected 64", bugs=("DPS-02", "DPS-03", "DPS-04"))
class DividesByHoldersAtSize(Reference):
    """Expert gradients are averaged over the holders of the shard, 1/edp."""

    def gradient_reduction(
        self, degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind
    ) -> GradientReduction:
        right = super().gradient_reduction(degrees, world, layout, rank, kind)
        return replace(right, divisor=len(right.ranks)) if kind == "expert" else right


@mutant(of="TOPO-11b", case="dense-65536", says="rank 61447 is missing from the dense sum of rank 65535")
class CapsTheGroup(Reference):
    """Over-correction for slow rings: a sum takes at most the last 256 ranks of its group and leaves the rest."""

    def gradient_reduction(
        self, degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind
    ) -> GradientReduction:
        right = super().gradient_reduction(degrees, world, layout, rank, kind)
        return replace(right, ranks=right.ranks[-256:])


@mutant(of="TOPO-11c", case="own-axis-4096", says="calls create a group for several purposes")
class DeclaresGroupsForEachPurposeAtSize(Reference):
    """Declares one group for each purpose, and shares."""

    conventions = {"communicators": "purpose"}


@mutant(of="TOPO-11c", case="own-axis-4096", says="calls create a group that an earlier call created")
class FreshGroupsForOnePurpose(Reference):
    """One group for each purpose as declared, and those of the pipelines twice."""

    conventions = {"communicators": "purpose"}

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> tuple[GroupCall, ...]:
        calls = super().group_calls(degrees, world, layout, rank)
        alone = tuple(GroupCall(members=call.members, axes=(axis,)) for call in calls for axis in call.axes)
        return alone + tuple(call for call in alone if call.axes == ("pp",))
