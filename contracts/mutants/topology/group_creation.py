"""Stacks that create groups wrongly: a call skipped, out of order, twice, or shared with the wrong members."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.topology import Degrees, GroupCall, Layout
from contracts.stacks.reference.stack import Reference

Calls = tuple[GroupCall, ...]


@mutant(of="TOPO-06", case="own-axis-pp2-tp4-ep3", says="call 0 creates [0, 24] on rank 0 and [1, 25] on rank 1")
class StartsWithItsOwnGroups(Reference):
    """Every rank first creates the groups it belongs to, then the rest: the same calls in another order."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        calls = super().group_calls(degrees, world, layout, rank)
        return tuple(sorted(calls, key=lambda call: rank not in call.members))


@mutant(of="TOPO-06", case="borrowed-pp3-cp2-tp2-ep4", says="on rank 0 and")
class SkipsForeignGroups(Reference):
    """Creates only the groups it is a member of; the other ranks wait in `new_group` for it."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        return tuple(call for call in super().group_calls(degrees, world, layout, rank) if rank in call.members)


@mutant(of="TOPO-06", case="borrowed-pp2-tp2-ep6-etp1", says="one of them never creates")
class EndsAtItsOwnLastGroup(Reference):
    """Leaves the loop once it has found its own expert group: early ranks make fewer calls."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        calls = super().group_calls(degrees, world, layout, rank)
        last = max(index for index, call in enumerate(calls) if rank in call.members)
        return calls[: last + 1]


@mutant(of="TOPO-06a", case="borrowed-pp3-cp2-tp2-ep4", says="no call creates the cp group")
class ContextOnTheWorld(Reference):
    """Creates no group for CP: the boundary exchange runs on the world and couples independent replicas."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        return tuple(call for call in super().group_calls(degrees, world, layout, rank) if call.axes != ("cp",))


@mutant(of="TOPO-07", case="own-axis-pp2-tp2-on-4", says="[0, 2] is created twice: for", bugs=("PG-09",))
class CreatesAFreshPipelineGroup(Reference):
    """Always calls `new_group` for PP, though the DP group made before PP has the same members."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        calls = super().group_calls(degrees, world, layout, rank)
        again = tuple(GroupCall(members=call.members, axes=("pp",)) for call in calls if "pp" in call.axes)
        before = tuple(replace(call, axes=("dp",)) if "pp" in call.axes else call for call in calls)
        return before + again


@mutant(of="TOPO-07", case="borrowed-pp2-tp2-ep6-etp1", says="is created twice: for")
class OneCallForEachAxis(Reference):
    """Loops over axes and creates each group anew: dp and dp_cp are the same ranks when cp is 1."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        calls = super().group_calls(degrees, world, layout, rank)
        return tuple(GroupCall(members=call.members, axes=(axis,)) for call in calls for axis in call.axes)


@mutant(of="TOPO-07a", case="own-axis-pp2-tp4-ep3", says="pp is served by [0, 12], which is no pp group")
class ReusesBySize(Reference):
    """Over-correction: PP takes over every DP group of the same size, whoever is in it."""

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        calls = super().group_calls(degrees, world, layout, rank)
        kept = (call for call in calls if "pp" not in call.axes)
        return tuple(
            replace(call, axes=("pp", *call.axes)) if "dp" in call.axes and len(call.members) == degrees.pp else call
            for call in kept
        )


@mutant(of="TOPO-07", case="own-axis-pp2-tp2-on-4", says="which are two purposes")
class DeclaresAGroupForEachPurpose(Reference):
    """Declares one group for each purpose, and shares: collectives that should overlap wait for each other."""

    conventions = {"communicators": "purpose"}


@mutant(of="TOPO-07", case="borrowed-pp3-cp2-tp2-ep4", says="is created twice for")
class OneCallTooManyForAPurpose(OneCallForEachAxis):
    """One group for each purpose as declared, and those of the first purpose again."""

    conventions = {"communicators": "purpose"}

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> Calls:
        calls = super().group_calls(degrees, world, layout, rank)
        return (*calls, calls[0])
