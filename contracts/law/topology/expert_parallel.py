"""The wiring of an expert layer: when expert parallelism is on, and what that does to sequence parallelism.

The parallel degrees decide this. Which mesh objects happen to exist does not.
"""

from contracts.contract import contract
from contracts.law._support.layouts import groups_of, needs_layout
from contracts.spec import Degrees, Layout, Stack

# ep → whether EP is on, for expert TP that follows TP (0), is off (1) or is written out (4), with and without a mesh
PREDICATE = {
    f"ep{ep}-etp{etp}-{'mesh' if mesh else 'no-mesh'}": (Degrees(tp=4, sp=True, ep=ep, etp=etp), mesh, active)
    for ep, active in ((1, False), (2, True), (4, True))
    for etp in (0, 1, 4)
    for mesh in (False, True)
} | {
    "ep3-without-tp": (Degrees(ep=3), False, True),
    "ep1-without-tp-mesh": (Degrees(), True, False),
    "ep1-cp2-pp2": (Degrees(pp=2, cp=2, tp=2, sp=True), True, False),
}


@contract("TOPO-03", asks="expert_lane", cases=PREDICATE, source="bringup")
def ep_is_active_iff_its_degree_exceeds_one(stack: Stack, degrees: Degrees, mesh: bool, active: bool) -> None:
    """EP is active exactly when its degree exceeds 1, whatever mesh objects exist.

    The launch had expert_parallel 2 and expert_tensor_parallel 0, which follows TP and makes no mesh of its own. The
    wiring tested `expert_tp_mesh is not None`, so the model took EP to be off.
    """
    found = stack.expert_lane(degrees, mesh, 128, 256).ep_active
    exists = "exists" if mesh else "does not exist"
    assert found is active, f"ep_active is {found}, expected {active}: ep is {degrees.ep}, an expert TP mesh {exists}"


FOLLOWS: dict[str, tuple[Degrees, Degrees, int, Layout]] = {  # etp left at 0, and etp written out as tp
    "own-axis-tp4": (Degrees(tp=4, ep=2), Degrees(tp=4, ep=2, etp=4), 24, "own-axis"),
    "borrowed-pp2-tp2-ep4": (Degrees(pp=2, tp=2, ep=4), Degrees(pp=2, tp=2, ep=4, etp=2), 64, "borrowed"),
    "borrowed-cp2-tp3": (Degrees(cp=2, tp=3, ep=5), Degrees(cp=2, tp=3, ep=5, etp=3), 30, "borrowed"),
}


@contract("TOPO-03a", asks="topology", cases=FOLLOWS, source="bringup")
def expert_tp_zero_follows_tp(stack: Stack, unset: Degrees, written: Degrees, world: int, layout: Layout) -> None:
    """An expert TP degree of 0 means the TP degree: the mesh equals the one in which that degree is given.

    When two layers of a stack resolve an unset degree differently, one as TP and one as 1, they shard one expert twice.
    """
    needs_layout(stack, layout)
    implied, explicit = stack.topology(unset, world, layout), stack.topology(written, world, layout)
    for axis in ("ep", *(axis for axis in ("etp", "edp") if axis in explicit.groups)):
        found = {frozenset(members) for members in groups_of(implied, axis)}
        expected = {frozenset(members) for members in groups_of(explicit, axis)}
        odd = sorted(sorted(members) for members in found - expected)
        assert found == expected, f"with etp 0 an {axis} group is {odd[:1]}; etp {written.etp} has no such group"
    assert implied.expert_dp == explicit.expert_dp, (
        f"expert dp is {implied.expert_dp} with etp 0 and {explicit.expert_dp} with etp {written.etp}"
    )


EP_LANES = {  # degrees, mesh, one rank's shard of the sequence, hidden; the router's input is that shard
    "seed-ep2-etp-follows-tp2": (Degrees(tp=2, sp=True, ep=2, etp=0), False, 128, 128),
    "ep2-etp2-with-its-mesh": (Degrees(tp=2, sp=True, ep=2, etp=2), True, 128, 128),
    "ep4-tp4-etp1": (Degrees(tp=4, sp=True, ep=4, etp=1), True, 96, 320),
    "ep8-without-sp": (Degrees(tp=2, ep=8), False, 257, 192),
    "ep3-without-tp": (Degrees(ep=3), False, 61, 72),
}


@contract("TOPO-04", asks="expert_lane", cases=EP_LANES, source="bringup")
def ep_keeps_the_local_shard(stack: Stack, degrees: Degrees, mesh: bool, sequence: int, hidden: int) -> None:
    """With EP active, the expert MLPs have no manual SP hook, and the router receives its rank's local shard of the
    sequence.

    The trace of the repaired run reads ep_active=True ep_local=True manual_sp=False ep_lane=True, router_in (1, 128,
    128). Before, a hook on inner.mlp expanded the router's input from the shard to the full sequence: the collective
    was legal but the math below it was wrong, and an Inductor assertion showed it much later.
    """
    lane = stack.expert_lane(degrees, mesh, sequence, hidden)
    expected = {"ep_active": True, "ep_local": True, "manual_sp": False, "ep_lane": True}
    for name, value in expected.items():
        found = getattr(lane, name)
        assert found is value, f"{name} is {found}, expected {value} ({degrees})"
    local = (1, sequence, hidden)
    assert lane.router_in == local, f"router_in is {lane.router_in}, expected the local shard {local}"


TP_LANES = {  # degrees, mesh, local shard, hidden → manual SP, router_in
    "sp-gathers-tp2": (Degrees(tp=2, sp=True), False, 128, 128, True, (1, 256, 128)),
    "sp-gathers-tp4-beside-a-mesh": (Degrees(tp=4, sp=True, etp=1), True, 96, 320, True, (1, 384, 320)),
    "no-sp-nothing-to-gather": (Degrees(tp=4), False, 96, 320, False, (1, 96, 320)),
}


@contract("TOPO-04a", asks="expert_lane", cases=TP_LANES, source="bringup", layout="own-axis")
def without_ep_the_manual_hook_stays(
    stack: Stack, degrees: Degrees, mesh: bool, sequence: int, hidden: int, *expected: object
) -> None:
    """With EP off and SP on, the manual SP hook stays, and the router receives the full sequence that the hook gathers.

    Removing the hook everywhere repairs the EP case and breaks this one: experts sharded over TP see only a part of the
    tokens. The contract does not apply to stacks whose dispatcher gathers, such as those with the borrowed layout.
    """
    manual, router_in = expected
    lane = stack.expert_lane(degrees, mesh, sequence, hidden)
    assert lane.ep_active is False, f"ep_active is {lane.ep_active} with ep {degrees.ep}"
    assert lane.manual_sp is manual, f"manual_sp is {lane.manual_sp}, expected {manual} ({degrees})"
    assert lane.router_in == router_in, f"router_in is {lane.router_in}, expected {router_in}"
