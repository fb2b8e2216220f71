"""Stacks that are right on one node and wrong at a large world size."""

from dataclasses import replace

from contracts.contract import mutant
from contracts.law._bugs.broken import broken, with_attributes
from contracts.spec import Degrees, GroupCall, Layout, Mesh
from contracts.stacks.reference.stack import Reference


def _local(call: GroupCall) -> bool:
    """Whether all members live in one node of eight."""
    return len({member // 8 for member in call.members}) == 1


@broken(Reference, "topology", "TOPO-11[borrowed-4096]: are no grid: a pp and a tp group share ranks")
def truncates_strides(topology, self, degrees, world, layout):
    """Strides are kept in one byte: above 256 ranks the stage wraps around onto its neighbours."""
    answer = topology(self, degrees, world, layout)
    stride = world // degrees.pp
    if stride < 256:
        return answer
    chunks = tuple(tuple(range(first, first + degrees.pp)) for first in range(0, world, degrees.pp))
    return replace(answer, groups={**answer.groups, "pp": chunks})


@broken(Reference, "topology", "TOPO-11[own-axis-4096]: tp group 0 … 448 spans nodes 0 and 56")
def zips_data_innermost(topology, self, degrees, world, layout):
    """Builds the mesh in the order pp, tp, ep, dp: each axis has its size, and on one node every stride fits."""
    answer = topology(self, degrees, world, layout)
    axes = ("pp", "tp", "ep", "dp")
    mesh = Mesh(axes=axes, sizes=(degrees.pp, degrees.tp, degrees.ep, answer.dp))
    groups = {axis: mesh.groups(axis) for axis in axes}
    return replace(answer, groups={**groups, "etp": groups["tp"], "edp": groups["dp"]})


@broken(
    Reference, "group_calls", "TOPO-11a[borrowed-512]: on rank 0, [504, 505, 506, 507, 508, 509, 510, 511] on rank 511"
)
def node_local_calls(group_calls, self, degrees, world, layout, rank):
    """Only a node's own ranks create a group inside it: on a single node all ranks agree."""
    calls = group_calls(self, degrees, world, layout, rank)
    return tuple(call for call in calls if not _local(call) or call.members[0] // 8 == rank // 8)


@broken(
    Reference,
    "group_calls",
    "TOPO-11c[own-axis-4096]: calls create a group that an earlier call created",
    bugs=("PG-09",),
)
def fresh_groups_for_stages(group_calls, self, degrees, world, layout, rank):
    """Creates the PP groups again after the mesh is built, one call per pipeline."""
    calls = group_calls(self, degrees, world, layout, rank)
    return calls + tuple(call for call in calls if "pp" in call.axes)


@broken(
    Reference,
    "gradient_reduction",
    "TOPO-11b[expert-4096]: divided by 16, expected 64",
    bugs=("DPS-02", "DPS-03", "DPS-04"),
)
def divides_by_holders_at_size(gradient_reduction, self, degrees, world, layout, rank, kind):
    """Expert gradients are averaged over the holders of the shard, 1/edp."""
    right = gradient_reduction(self, degrees, world, layout, rank, kind)
    return replace(right, divisor=len(right.ranks)) if kind == "expert" else right


@broken(
    Reference, "gradient_reduction", "TOPO-11b[dense-65536]: rank 61447 is missing from the dense sum of rank 65535"
)
def caps_the_group(gradient_reduction, self, degrees, world, layout, rank, kind):
    """Over-correction for slow rings: a sum takes at most the last 256 ranks of its group and leaves the rest."""
    right = gradient_reduction(self, degrees, world, layout, rank, kind)
    return replace(right, ranks=right.ranks[-256:])


with_attributes(
    "DeclaresGroupsForEachPurposeAtSize",
    "Declares one group for each purpose, and shares.",
    "TOPO-11c[own-axis-4096]: calls create a group for several purposes",
    conventions={"communicators": "purpose"},
)


@mutant(of="TOPO-11c", case="own-axis-4096", says="calls create a group that an earlier call created")
class FreshGroupsForOnePurpose(Reference):
    """One group for each purpose as declared, and those of the pipelines twice."""

    conventions = {"communicators": "purpose"}

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> tuple[GroupCall, ...]:
        calls = super().group_calls(degrees, world, layout, rank)
        alone = tuple(GroupCall(members=call.members, axes=(axis,)) for call in calls for axis in call.axes)
        return alone + tuple(call for call in alone if call.axes == ("pp",))
