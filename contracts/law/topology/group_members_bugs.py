"""Stacks whose groups are wrong in one place: members, order of axes, legality."""

from dataclasses import replace

from contracts.law._bugs.broken import broken, with_attributes
from contracts.spec import Degrees, Group, Layout, Mesh, Topology
from contracts.stacks.reference.stack import Reference


def _with(answer: Topology, axis: str, *groups: Group) -> Topology:
    return replace(answer, groups={**answer.groups, axis: groups})


@broken(Reference, "topology", "TOPO-05[own-axis-pp2-tp2-ep3]: dp does not partition the world: rank 30 is in no group")
def groups_of_the_first_stage(topology, self, degrees, world, layout):
    """Counts data-parallel groups from rank 0 and stops after the first stage: other stages' ranks belong to none."""
    answer = topology(self, degrees, world, layout)
    stage = world // degrees.pp
    return _with(answer, "dp", *(group for group in answer.groups["dp"] if group[0] < stage))


@broken(
    Reference,
    "topology",
    "TOPO-05[borrowed-pp2-tp2-ep6-etp1]: ep does not partition the world: rank 48 is no rank",
    bugs=("PG-18",),
)
def groups_of_sixteen_experts(topology, self, degrees, world, layout):
    """The number of experts is passed where the EP degree is meant: groups of 16 run over the end of the world."""
    answer = topology(self, degrees, world, layout)
    return _with(answer, "ep", *(tuple(range(first, first + 16)) for first in range(0, world + 16, 16)))


@broken(Reference, "topology", "TOPO-05[borrowed-2x4]: dp has size 2 and groups of 4")
def squares_the_mesh(topology, self, degrees, world, layout):
    """Swaps rows and columns when it enumerates: right on 2 × 2, wrong on 2 × 4."""
    answer = topology(self, degrees, world, layout)
    groups = {**answer.groups, "tp": answer.groups["dp"], "dp": answer.groups["tp"]}
    return replace(answer, groups=groups)


@broken(Reference, "topology", "TOPO-05a[own-axis-pp2-tp2-ep3]: a dp and a ep group share ranks 0 and 2")
def dp_from_consecutive_ranks(topology, self, degrees, world, layout):
    """Chunks the world into data-parallel groups without striding over TP: groups of two axes share ranks."""
    answer = topology(self, degrees, world, layout)
    chunks = (tuple(range(first, first + answer.dp)) for first in range(0, world, answer.dp))
    return _with(answer, "dp", *chunks)


@broken(Reference, "topology", "TOPO-05a[borrowed-pp3-cp2-tp2-ep4]: pp, edp, ep, etp are no grid")
def experts_on_a_dense_stride(topology, self, degrees, world, layout):
    """EP groups stride over cp · tp as dense groups do, edp groups do not: two ranks hold the same expert shard."""
    answer = topology(self, degrees, world, layout)
    mesh = Mesh(
        axes=("pp", "edp", "ep", "tp"),
        sizes=(degrees.pp, answer.dp // degrees.ep, degrees.ep, degrees.cp * degrees.tp),
    )
    return _with(answer, "ep", *mesh.groups("ep"))


class _Zipped(Reference):
    """Builds the dense grid in another order of axes, slowest first."""

    order: tuple[str, ...]

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        sizes = {"pp": degrees.pp, "dp": answer.dp * degrees.ep * degrees.cp, "tp": degrees.tp}
        mesh = Mesh(axes=self.order, sizes=tuple(sizes[axis] for axis in self.order))
        return replace(answer, groups={**answer.groups, **{axis: mesh.groups(axis) for axis in self.order}})


with_attributes(
    "ZipsPipelineInnermost",
    "Builds the mesh in the order dp, tp, pp: sizes are right, every neighbour is wrong.",
    "TOPO-05b[own-axis-pp3-tp2]: the pp group of rank 0 is [0, 1, 2], expected [0, 4, 8]",
    owner=_Zipped,
    bugs=("PG-01",),
    order=("dp", "tp", "pp"),
)

with_attributes(
    "PutsTensorOutsideData",
    "Over-correction: PP is moved outermost and TP along with it, so that dp varies fastest.",
    "TOPO-05b[own-axis-pp3-tp2]: the dp group of rank 0 is [0, 1], expected [0, 2]",
    owner=_Zipped,
    order=("pp", "tp", "dp"),
)


@broken(
    Reference,
    "topology",
    "TOPO-05b[borrowed-etp1-on-64]: the ep group of rank 0 is [0, 2, 4, 6], expected [0, 1, 2, 3]",
)
def strides_experts_over_tp(topology, self, degrees, world, layout):
    """EP keeps the stride of TP where etp is 1: tokens cross twice the distance, and experts are not where they were
    saved.
    """
    answer = topology(self, degrees, world, layout)
    follows = topology(self, replace(degrees, etp=degrees.tp), world, layout)
    return _with(answer, "ep", *follows.groups["ep"])


@broken(
    Reference,
    "topology",
    "TOPO-05c[drawn-050-099]: is illegal and was accepted",
    "TOPO-05g[drawn-050-099]: is illegal and was accepted",
    "TOPO-01a[borrowed-tp2-ep4-on-4]: expected a refusal",
)
def checks_dense_axes_alone(topology, self, degrees, world, layout):
    """Never looks at pp · etp · ep; experts that do not fit are cut down instead of refused."""
    tensor = degrees.etp or degrees.tp
    if world % (degrees.pp * tensor * degrees.ep):
        degrees = replace(degrees, ep=1, etp=1)
    return topology(self, degrees, world, layout)


@broken(Reference, "topology", "TOPO-05c[drawn-100-149]: is no edp group")
def gives_experts_context(topology, self, degrees, world, layout):
    """The expert grid has a cp axis of its own: replicas of one expert on different CP ranks never meet."""
    answer = topology(self, degrees, world, layout)
    if answer.expert_dp % degrees.cp:
        return answer
    share = answer.expert_dp // degrees.cp
    halves = (group[at : at + share] for group in answer.groups["edp"] for at in range(0, len(group), share))
    return _with(answer, "edp", *halves)


@broken(
    Reference,
    "topology",
    "TOPO-05e[drawn-000-099]: is illegal and was accepted",
    "TOPO-01a[own-axis-pp2-tp2-on-10]: expected a refusal",
)
def rounds_the_world_down(topology, self, degrees, world, layout):
    """dp = world // (pp · ep · tp): the ranks that are left over belong to no group."""
    product = degrees.pp * degrees.tp * degrees.ep
    return topology(self, degrees, max(product, world - world % product), layout)


@broken(Reference, "topology", "TOPO-05e[drawn-200-299]: pp, dp, ep, tp are no grid")
def deals_experts_round_robin(topology, self, degrees, world, layout):
    """Deals ranks to EP groups round robin over the world: right without a pipeline and with dp 1."""
    answer = topology(self, degrees, world, layout)
    groups = len(answer.groups["ep"])
    return _with(answer, "ep", *(tuple(range(first, world, groups)) for first in range(groups)))


with_attributes(
    "SpansNodes",
    "Builds the mesh in the order dp, tp, pp: with pp 4 a TP group of eight lies on four nodes.",
    "TOPO-08[own-axis-pp4-tp8]: tp group [0, 4, 8, 12, 16, 20, 24, 28] spans nodes [0, 1, 2, 3]",
    owner=_Zipped,
    bugs=("PG-01",),
    order=("dp", "tp", "pp"),
)


@broken(Reference, "topology", "TOPO-08[borrowed-pp3-tp2-etp8]: etp group")
def tensor_outside_experts(topology, self, degrees, world, layout):
    """Expert TP varies slower than EP: with etp 8 every expert is split over two nodes."""
    answer = topology(self, degrees, world, layout)
    tensor = degrees.etp or degrees.tp
    mesh = Mesh(axes=("pp", "edp", "etp", "ep"), sizes=(degrees.pp, answer.expert_dp, tensor, degrees.ep))
    return _with(answer, "etp", *mesh.groups("etp"))
