"""Stacks that misread when expert parallelism is on, and what follows from it."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import ExpertLane
from contracts.stacks.reference.stack import Reference


def _wired(degrees, active, local_sequence, hidden):
    """The expert wiring that follows from whether the stack takes EP to be on."""
    gathers = degrees.sp and not active
    sequence = local_sequence * degrees.tp if gathers else local_sequence
    return ExpertLane(
        ep_active=active, ep_local=active, manual_sp=gathers, ep_lane=active, router_in=(1, sequence, hidden)
    )


@broken(
    Reference,
    "expert_lane",
    "TOPO-03[ep2-etp0-no-mesh]: ep_active is False, expected True",
    "TOPO-04[seed-ep2-etp-follows-tp2]: ep_active is False, expected True",
    bugs=("EPD-01",),
)
def mesh_object_decides(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """Tests `expert_tp_mesh is not None`: expert TP that follows TP makes no mesh, so EP 2 counts as off."""
    return _wired(degrees, expert_tp_mesh, local_sequence, hidden)


@broken(Reference, "expert_lane", "TOPO-03[ep1-etp1-mesh]: ep_active is True, expected False")
def mesh_or_degree_decides(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """Over-correction: tests the degree or the mesh, so a mesh without EP still counts."""
    return _wired(degrees, degrees.ep > 1 or expert_tp_mesh, local_sequence, hidden)


@broken(Reference, "expert_lane", "TOPO-03[ep1-etp4-no-mesh]: ep_active is True, expected False")
def any_degree_is_active(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """Over-correction: tests `if expert_parallel_degree`, which is true for 1 as well."""
    return _wired(degrees, degrees.ep > 0, local_sequence, hidden)


@broken(Reference, "expert_lane", "TOPO-03[ep4-etp1-mesh]: ep_active is False, expected True")
def expert_tp_decides(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """Tests the resolved expert TP degree instead of the EP degree: etp 1 turns EP off."""
    return _wired(degrees, (degrees.etp or degrees.tp) > 1, local_sequence, hidden)


@broken(Reference, "expert_lane", "TOPO-03[ep3-without-tp]: ep_active is False, expected True")
def needs_tensor_parallel(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """The test for EP is in the tensor-parallel wiring, which returns early at tp 1."""
    return _wired(degrees, degrees.ep > 1 and degrees.tp > 1, local_sequence, hidden)


@broken(Reference, "expert_lane", "TOPO-04[seed-ep2-etp-follows-tp2]: manual_sp is True, expected False")
def leaves_the_stale_hook(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """The test for EP is fixed, but the hook that was attached to inner.mlp earlier stays."""
    lane = expert_lane(self, degrees, expert_tp_mesh, local_sequence, hidden)
    return replace(lane, manual_sp=degrees.sp)


@broken(
    Reference, "expert_lane", "TOPO-04[ep4-tp4-etp1]: router_in is (1, 384, 320), expected the local shard (1, 96, 320)"
)
def routes_the_full_sequence(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """The flags are right but the router's input is still gathered: every token is dispatched tp times."""
    lane = expert_lane(self, degrees, expert_tp_mesh, local_sequence, hidden)
    sequence = local_sequence * (degrees.tp if degrees.sp else 1)
    return replace(lane, router_in=(1, sequence, hidden))


@broken(Reference, "expert_lane", "TOPO-04a[sp-gathers-tp2]: manual_sp is False, expected True")
def takes_every_hook_away(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """Over-correction: no layout has the hook, and experts sharded over TP see only a part of the tokens."""
    lane = expert_lane(self, degrees, expert_tp_mesh, local_sequence, hidden)
    return replace(lane, manual_sp=False, router_in=(1, local_sequence, hidden))


@broken(Reference, "expert_lane", "TOPO-04a[no-sp-nothing-to-gather]: manual_sp is True, expected False")
def hooks_without_sequence_parallel(expert_lane, self, degrees, expert_tp_mesh, local_sequence, hidden):
    """Attaches the hook wherever TP is on: without SP it repeats a sequence that is already whole."""
    lane = expert_lane(self, degrees, expert_tp_mesh, local_sequence, hidden)
    return replace(lane, manual_sp=degrees.tp > 1 and not lane.ep_active)
