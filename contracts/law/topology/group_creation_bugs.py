"""Stacks that create groups wrongly: a call skipped, out of order, twice, or shared with the wrong members."""

from dataclasses import replace

from contracts.contract import mutant
from contracts.law._bugs.broken import broken, with_attributes
from contracts.spec import Degrees, GroupCall, Layout
from contracts.stacks.reference.stack import Reference

Calls = tuple[GroupCall, ...]


@broken(
    Reference, "group_calls", "TOPO-06[own-axis-pp2-tp4-ep3]: call 0 creates [0, 24] on rank 0 and [1, 25] on rank 1"
)
def starts_with_its_own_groups(group_calls, self, degrees, world, layout, rank):
    """Every rank first creates the groups it belongs to, then the rest: the same calls in another order."""
    calls = group_calls(self, degrees, world, layout, rank)
    return tuple(sorted(calls, key=lambda call: rank not in call.members))


@broken(Reference, "group_calls", "TOPO-06[borrowed-pp3-cp2-tp2-ep4]: on rank 0 and")
def skips_foreign_groups(group_calls, self, degrees, world, layout, rank):
    """Creates only the groups it is a member of; the other ranks wait in `new_group` for it."""
    return tuple(call for call in group_calls(self, degrees, world, layout, rank) if rank in call.members)


@broken(Reference, "group_calls", "TOPO-06[borrowed-pp2-tp2-ep6-etp1]: one of them never creates")
def ends_at_its_own_last_group(group_calls, self, degrees, world, layout, rank):
    """Leaves the loop once it has found its own expert group: early ranks make fewer calls."""
    calls = group_calls(self, degrees, world, layout, rank)
    last = max(index for index, call in enumerate(calls) if rank in call.members)
    return calls[: last + 1]


@broken(Reference, "group_calls", "TOPO-06a[borrowed-pp3-cp2-tp2-ep4]: no call creates the cp group")
def context_on_the_world(group_calls, self, degrees, world, layout, rank):
    """Creates no group for CP: the boundary exchange runs on the world and couples independent replicas."""
    return tuple(call for call in group_calls(self, degrees, world, layout, rank) if call.axes != ("cp",))


@broken(Reference, "group_calls", "TOPO-07[own-axis-pp2-tp2-on-4]: [0, 2] is created twice: for", bugs=("PG-09",))
def creates_a_fresh_pipeline_group(group_calls, self, degrees, world, layout, rank):
    """Always calls `new_group` for PP, though the DP group made before PP has the same members."""
    calls = group_calls(self, degrees, world, layout, rank)
    again = tuple(GroupCall(members=call.members, axes=("pp",)) for call in calls if "pp" in call.axes)
    before = tuple(replace(call, axes=("dp",)) if "pp" in call.axes else call for call in calls)
    return before + again


@broken(Reference, "group_calls", "TOPO-07[borrowed-pp2-tp2-ep6-etp1]: is created twice: for")
def one_call_for_each_axis(group_calls, self, degrees, world, layout, rank):
    """Loops over axes and creates each group anew: dp and dp_cp are the same ranks when cp is 1."""
    calls = group_calls(self, degrees, world, layout, rank)
    return tuple(GroupCall(members=call.members, axes=(axis,)) for call in calls for axis in call.axes)


@broken(Reference, "group_calls", "TOPO-07a[own-axis-pp2-tp4-ep3]: pp is served by [0, 12], which is no pp group")
def reuses_by_size(group_calls, self, degrees, world, layout, rank):
    """Over-correction: PP takes over every DP group of the same size, whoever is in it."""
    calls = group_calls(self, degrees, world, layout, rank)
    kept = (call for call in calls if "pp" not in call.axes)
    return tuple(
        replace(call, axes=("pp", *call.axes)) if "dp" in call.axes and len(call.members) == degrees.pp else call
        for call in kept
    )


with_attributes(
    "DeclaresAGroupForEachPurpose",
    "Declares one group for each purpose, and shares: collectives that should overlap wait for each other.",
    "TOPO-07[own-axis-pp2-tp2-on-4]: which are two purposes",
    conventions={"communicators": "purpose"},
)


@mutant(of="TOPO-07", case="borrowed-pp3-cp2-tp2-ep4", says="is created twice for")
class OneCallTooManyForAPurpose(one_call_for_each_axis):
    """One group for each purpose as declared, and those of the first purpose again."""

    conventions = {"communicators": "purpose"}

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        calls = super().group_calls(degrees, world, layout, rank)
        return (*calls, calls[0])
