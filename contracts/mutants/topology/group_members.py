"""Stacks whose groups are wrong in one place: members, order of axes, legality."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import refuse
from contracts.spec.topology import Degrees, Group, Layout, Mesh, Topology
from contracts.stacks.reference.stack import Reference


def _with(answer: Topology, axis: str, *groups: Group) -> Topology:
    return replace(answer, groups={**answer.groups, axis: groups})


@mutant(of="TOPO-05", case="own-axis-pp2-tp2-ep3", says="dp does not partition the world: rank 30 is in no group")
class GroupsOfTheFirstStage(Reference):
    """Counts data-parallel groups from rank 0 and stops after the first stage: other stages' ranks belong to none."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        stage = world // degrees.pp
        return _with(answer, "dp", *(group for group in answer.groups["dp"] if group[0] < stage))


@mutant(of="TOPO-05", case="borrowed-pp2-tp2-ep6-etp1", says="ep does not partition the world: rank 48 is no rank",
        bugs=("PG-18",))  # fmt: skip
class GroupsOfSixteenExperts(Reference):
    """The number of experts is passed where the EP degree is meant: groups of 16 run over the end of the world."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        return _with(answer, "ep", *(tuple(range(first, first + 16)) for first in range(0, world + 16, 16)))


@mutant(of="TOPO-05", case="borrowed-2x4", says="dp has size 2 and groups of 4")
class SquaresTheMesh(Reference):
    """Swaps rows and columns when it enumerates: right on 2 × 2, wrong on 2 × 4."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        groups = {**answer.groups, "tp": answer.groups["dp"], "dp": answer.groups["tp"]}
        return replace(answer, groups=groups)


@mutant(of="TOPO-05a", case="own-axis-pp2-tp2-ep3", says="a dp and a ep group share ranks 0 and 2")
class DpFromConsecutiveRanks(Reference):
    """Chunks the world into data-parallel groups without striding over TP: groups of two axes share ranks."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        chunks = (tuple(range(first, first + answer.dp)) for first in range(0, world, answer.dp))
        return _with(answer, "dp", *chunks)


@mutant(of="TOPO-05a", case="borrowed-pp3-cp2-tp2-ep4", says="pp, edp, ep, etp are no grid")
class ExpertsOnADenseStride(Reference):
    """EP groups stride over cp · tp as dense groups do, edp groups do not: two ranks hold the same expert shard."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
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


@mutant(of="TOPO-05b", case="own-axis-pp3-tp2", says="the pp group of rank 0 is [0, 1, 2], expected [0, 4, 8]",
        bugs=("PG-01",))  # fmt: skip
class ZipsPipelineInnermost(_Zipped):
    """Builds the mesh in the order dp, tp, pp: sizes are right, every neighbour is wrong."""

    order = ("dp", "tp", "pp")


@mutant(of="TOPO-05b", case="own-axis-pp3-tp2", says="the dp group of rank 0 is [0, 1], expected [0, 2]")
class PutsTensorOutsideData(_Zipped):
    """Over-correction: PP is moved outermost and TP along with it, so that dp varies fastest."""

    order = ("pp", "tp", "dp")


@mutant(of="TOPO-05b", case="borrowed-etp1-on-64", says="the ep group of rank 0 is [0, 2, 4, 6], expected [0, 1, 2, 3]")
class StridesExpertsOverTp(Reference):
    """EP keeps the stride of TP where etp is 1: tokens cross twice the distance, and experts are not where they were
    saved.
    """

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        follows = super().topology(replace(degrees, etp=degrees.tp), world, layout)
        return _with(answer, "ep", *follows.groups["ep"])


@mutant(of="TOPO-05c", case="drawn-000-049", says="is legal and was refused", bugs=("PG-14",))
class MultipliesEpIntoTheModel(Reference):
    """The validator requires tp · pp · ep to divide the world, although EP overlaps data parallelism."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        if world % (degrees.tp * degrees.pp * degrees.ep):
            raise refuse("world", world, "must be a multiple of tp * pp * ep", "change a degree")
        return super().topology(degrees, world, layout)


@mutant(of="TOPO-05g", case="drawn-000-049", says="is legal and was refused", bugs=("PG-14",))
class MultipliesEpOfWholeExperts(MultipliesEpIntoTheModel):
    """The validator requires tp · pp · ep to divide the world also where experts are whole on a rank."""


@mutant(of="TOPO-05c", case="drawn-050-099", says="is illegal and was accepted")
class ChecksDenseAxesAlone(Reference):
    """Never looks at pp · etp · ep; experts that do not fit are cut down instead of refused."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        tensor = degrees.etp or degrees.tp
        if world % (degrees.pp * tensor * degrees.ep):
            degrees = replace(degrees, ep=1, etp=1)
        return super().topology(degrees, world, layout)


@mutant(of="TOPO-05g", case="drawn-050-099", says="is illegal and was accepted")
class LeavesEpUnchecked(ChecksDenseAxesAlone):
    """No check refuses an EP degree that does not divide what the dense axes leave."""


@mutant(of="TOPO-05c", case="drawn-100-149", says="is no edp group")
class GivesExpertsContext(Reference):
    """The expert grid has a cp axis of its own: replicas of one expert on different CP ranks never meet."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        if answer.expert_dp % degrees.cp:
            return answer
        share = answer.expert_dp // degrees.cp
        halves = (group[at : at + share] for group in answer.groups["edp"] for at in range(0, len(group), share))
        return _with(answer, "edp", *halves)


@mutant(of="TOPO-05e", case="drawn-000-099", says="is illegal and was accepted")
class RoundsTheWorldDown(Reference):
    """dp = world // (pp · ep · tp): the ranks that are left over belong to no group."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        product = degrees.pp * degrees.tp * degrees.ep
        return super().topology(degrees, max(product, world - world % product), layout)


@mutant(of="TOPO-05e", case="drawn-200-299", says="pp, dp, ep, tp are no grid")
class DealsExpertsRoundRobin(Reference):
    """Deals ranks to EP groups round robin over the world: right without a pipeline and with dp 1."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        groups = len(answer.groups["ep"])
        return _with(answer, "ep", *(tuple(range(first, world, groups)) for first in range(groups)))


@mutant(of="TOPO-08", case="own-axis-pp4-tp8", says="tp group [0, 4, 8, 12, 16, 20, 24, 28] spans nodes [0, 1, 2, 3]",
        bugs=("PG-01",))  # fmt: skip
class SpansNodes(_Zipped):
    """Builds the mesh in the order dp, tp, pp: with pp 4 a TP group of eight lies on four nodes."""

    order = ("dp", "tp", "pp")


@mutant(of="TOPO-08", case="borrowed-pp3-tp2-etp8", says="etp group")
class TensorOutsideExperts(Reference):
    """Expert TP varies slower than EP: with etp 8 every expert is split over two nodes."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        tensor = degrees.etp or degrees.tp
        mesh = Mesh(axes=("pp", "edp", "etp", "ep"), sizes=(degrees.pp, answer.expert_dp, tensor, degrees.ep))
        return _with(answer, "etp", *mesh.groups("etp"))
