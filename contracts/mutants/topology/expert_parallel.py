"""Stacks that misread when expert parallelism is on, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.topology import Degrees, ExpertLane, Layout, Topology
from contracts.stacks.reference.stack import Reference


def _wired(degrees: Degrees, active: bool, local_sequence: int, hidden: int) -> ExpertLane:
    """The expert wiring that follows from whether the stack takes EP to be on."""
    gathers = degrees.sp and not active
    sequence = local_sequence * degrees.tp if gathers else local_sequence
    return ExpertLane(
        ep_active=active, ep_local=active, manual_sp=gathers, ep_lane=active, router_in=(1, sequence, hidden)
    )


@mutant(of="TOPO-03", case="ep2-etp0-no-mesh", says="ep_active is False, expected True", bugs=("EPD-01",))
class MeshObjectDecides(Reference):
    """Tests `expert_tp_mesh is not None`: expert TP that follows TP makes no mesh, so EP 2 counts as off."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        return _wired(degrees, expert_tp_mesh, local_sequence, hidden)


@mutant(of="TOPO-03", case="ep1-etp1-mesh", says="ep_active is True, expected False")
class MeshOrDegreeDecides(Reference):
    """Over-correction: tests the degree or the mesh, so a mesh without EP still counts."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        return _wired(degrees, degrees.ep > 1 or expert_tp_mesh, local_sequence, hidden)


@mutant(of="TOPO-03", case="ep1-etp4-no-mesh", says="ep_active is True, expected False")
class AnyDegreeIsActive(Reference):
    """Over-correction: tests `if expert_parallel_degree`, which is true for 1 as well."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        return _wired(degrees, degrees.ep > 0, local_sequence, hidden)


@mutant(of="TOPO-03", case="ep4-etp1-mesh", says="ep_active is False, expected True")
class ExpertTpDecides(Reference):
    """Tests the resolved expert TP degree instead of the EP degree: etp 1 turns EP off."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        return _wired(degrees, (degrees.etp or degrees.tp) > 1, local_sequence, hidden)


@mutant(of="TOPO-03", case="ep3-without-tp", says="ep_active is False, expected True")
class NeedsTensorParallel(Reference):
    """The test for EP is in the tensor-parallel wiring, which returns early at tp 1."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        return _wired(degrees, degrees.ep > 1 and degrees.tp > 1, local_sequence, hidden)


@mutant(of="TOPO-03a", case="borrowed-pp2-tp2-ep4", says="with etp 0 an ep group is [[0, 1, 2, 3]]", bugs=("EPD-04",))
class UnsetEtpMeansOne(Reference):
    """The mesh resolves an unset expert TP degree as 1, although the recipe meant TP."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        return super().topology(replace(degrees, etp=degrees.etp or 1), world, layout)


@mutant(of="TOPO-04", case="seed-ep2-etp-follows-tp2", says="ep_active is False, expected True", bugs=("EPD-01",))
class BringUpLane(MeshObjectDecides):
    """The bring-up as launched: EP off because of the mesh, a manual hook, and the full sequence at the router."""


@mutant(of="TOPO-04", case="seed-ep2-etp-follows-tp2", says="manual_sp is True, expected False")
class LeavesTheStaleHook(Reference):
    """The test for EP is fixed, but the hook that was attached to inner.mlp earlier stays."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        lane = super().expert_lane(degrees, expert_tp_mesh, local_sequence, hidden)
        return replace(lane, manual_sp=degrees.sp)


@mutant(of="TOPO-04", case="ep4-tp4-etp1", says="router_in is (1, 384, 320), expected the local shard (1, 96, 320)")
class RoutesTheFullSequence(Reference):
    """The flags are right but the router's input is still gathered: every token is dispatched tp times."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        lane = super().expert_lane(degrees, expert_tp_mesh, local_sequence, hidden)
        sequence = local_sequence * (degrees.tp if degrees.sp else 1)
        return replace(lane, router_in=(1, sequence, hidden))


@mutant(of="TOPO-04a", case="sp-gathers-tp2", says="manual_sp is False, expected True")
class TakesEveryHookAway(Reference):
    """Over-correction: no layout has the hook, and experts sharded over TP see only a part of the tokens."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        lane = super().expert_lane(degrees, expert_tp_mesh, local_sequence, hidden)
        return replace(lane, manual_sp=False, router_in=(1, local_sequence, hidden))


@mutant(of="TOPO-04a", case="no-sp-nothing-to-gather", says="manual_sp is True, expected False")
class HooksWithoutSequenceParallel(Reference):
    """Attaches the hook wherever TP is on: without SP it repeats a sequence that is already whole."""

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        lane = super().expert_lane(degrees, expert_tp_mesh, local_sequence, hidden)
        return replace(lane, manual_sp=degrees.tp > 1 and not lane.ep_active)
