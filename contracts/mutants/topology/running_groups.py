"""Stacks that make their process groups wrongly in one place of a running job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from contracts.contract import mutant
from contracts.spec.topology import Group, Mesh, group_calls
from contracts.stacks.reference.parallel.mesh import ProcessMesh
from contracts.stacks.reference.stack import Reference


class _ZipsDpTpPp(ProcessMesh):
    def place(self, axis: str) -> Group:
        sizes = self.topology.sizes
        mesh = Mesh(axes=("dp", "tp", "pp"), sizes=(sizes["dp"], sizes["tp"], sizes["pp"]))
        if axis not in mesh.axes:
            return super().place(axis)
        return next(group for group in mesh.groups(axis) if self.rank in group)


@mutant(of="TOPO-05d", case="own-axis-pp2-tp2-on-4", says="holds [0, 1] as its pp group, expected [0, 2]",
        bugs=("PG-01",))  # fmt: skip
class BuildsTheLiveMeshInsideOut(Reference):
    """Builds the dimensions in the order dp, tp, pp: pipeline neighbours are adjacent and TP crosses the stages."""

    mesh = _ZipsDpTpPp


class _PairsNeighbours(ProcessMesh):
    def place(self, axis: str) -> Group:
        members = super().place(axis)
        first = self.rank - self.rank % len(members)
        return tuple(range(first, first + len(members))) if axis == "edp" else members


@mutant(of="TOPO-05d", case="borrowed-cp2-ep2-on-4", says="as its edp group, expected")
class ReplicatesExpertsOnNeighbours(Reference):
    """Takes the ranks that share an expert shard to be consecutive; their gradients average other experts."""

    mesh = _PairsNeighbours


class _NumbersFromItsStage(ProcessMesh):
    def members(self, axis: str) -> Group:
        members = super().members(axis)
        return tuple(rank - members[0] for rank in members) if axis == "tp" else members


@mutant(of="TOPO-05d", case="own-axis-ep2-tp2-etp1-on-4", says="rank 2 holds [0, 1] as its tp group, expected [2, 3]")
class NumbersRanksWithinTheGroup(Reference):
    """Gives ranks within the group where global ranks are needed: right as long as a group begins at rank 0."""

    mesh = _NumbersFromItsStage


class _UsesTheWorld(ProcessMesh):
    def total(self, axis: str, contribution: int) -> int:
        if axis != "cp" or len(self.place(axis)) == 1:
            return super().total(axis, contribution)
        total = self._torch.tensor([contribution])
        self._dist.all_reduce(total)
        return int(total.item())


@mutant(of="TOPO-05f", case="borrowed-cp2-ep2-on-4", says="over the cp group [0, 1] of rank 0 is 15, expected 3",
        bugs=("PG-25",))  # fmt: skip
class ForgetsTheGroupArgument(Reference):
    """The exchange across context-parallel ranks leaves out `group=` and runs on the world."""

    mesh = _UsesTheWorld


class _ReusesBySize(ProcessMesh):
    def total(self, axis: str, contribution: int) -> int:
        size = self.topology.sizes[axis]
        first = next(name for name, its in self.topology.sizes.items() if its == size)
        return super().total(first, contribution)


@mutant(of="TOPO-05f", case="own-axis-pp2-tp2-on-4", says="over the tp group [0, 1] of rank 0 is 5, expected 3")
class ReusesAGroupOfEqualSize(Reference):
    """Over-correction of the duplicate group: any group of the same size is taken for the same group."""

    mesh = _ReusesBySize


class _MeetsTwice(ProcessMesh):
    def total(self, axis: str, contribution: int) -> int:
        total = super().total(axis, contribution)
        return super().total(axis, total) if axis == "edp" else total


@mutant(of="TOPO-05f", case="own-axis-ep2-tp2-etp1-on-4", says="over the edp group [0, 1] of rank 0 is 6, expected 3")
class ReducesASharedGroupTwice(Reference):
    """TP and expert replicas share one group, and each of them reduces what passes through it."""

    mesh = _MeetsTwice


class _Locally(ProcessMesh):
    """Creates a group by its members alone, which works where torch names a group by its members."""

    def create(self, members: Group, axes: str) -> Any:
        if self.rank not in members:
            return None
        self.calls.append(members)
        timeout = timedelta(seconds=20)
        return self._dist.new_group(list(members), timeout=timeout, use_local_synchronization=True, group_desc=axes)


@mutant(of="TOPO-06d", case="own-axis-pp2-tp2-on-4", says="call 0 creates [0, 2] on rank 0 and [1, 3] on rank 1")
class MakesItsOwnGroupsAlone(Reference):
    """A rank creates only the groups that it belongs to, to save time at start-up."""

    mesh = _Locally


class _InAnotherOrder(ProcessMesh):
    def make(self) -> None:
        calls = [call.members for call in group_calls(self.topology) if 1 < len(call.members) < self.topology.world]
        last = self.rank == self.topology.world - 1
        foreign = iter([members for members in reversed(calls) if self.rank not in members])
        for members in calls:
            chosen = next(foreign) if last and self.rank not in members else members
            self._made[chosen] = self.create(chosen, "")


@mutant(of="TOPO-06d", case="own-axis-ep2-tp2-etp1-on-4", says="call 0 creates [0, 1] on rank 0 and [0, 2] on rank 3")
class WalksAForeignGroupsSet(Reference):
    """The last rank takes the groups it is no member of from a set. Its own are in order, so nothing hangs yet."""

    mesh = _InAnotherOrder


class _OneMoreOnOne(ProcessMesh):
    def make(self) -> None:
        super().make()
        if self.rank == self.topology.world - 1:
            alone = (self.rank,)
            self.calls.append(alone)
            self._made[alone] = self._dist.new_group([self.rank], use_local_synchronization=True)


@mutant(of="TOPO-06d", case="borrowed-tp2-ep4-etp1-on-4", says="groups and rank 3")
class TheLastStageMakesOneMore(Reference):
    """Only the rank that owns the MTP layers makes a group for them."""

    mesh = _OneMoreOnOne


class _AlwaysMakes(ProcessMesh):
    """Makes one more group for an axis, even when one exists."""

    axis = "dp"

    def make(self) -> None:
        super().make()
        for number, members in enumerate(self.topology.groups[self.axis]):
            if len(members) > 1:
                self._made[(*members, -1 - number)] = self.create(members, f"{self.axis} again")

    def close(self) -> None:
        for members, group in self._made.items():
            if self.rank in members:
                self._dist.destroy_process_group(group)
        self._made.clear()


@mutant(of="TOPO-07d", case="borrowed-cp2-ep2-on-4", says="rank 0 holds 2 groups of [0, 2]", bugs=("PG-09",))
class MakesAPipelineGroupBesideDp(Reference):
    """Makes a group for each axis, although the group of another axis has the same members."""

    mesh = _AlwaysMakes


class _MakesTheWorldAgain(_AlwaysMakes):
    axis = "ep"


@mutant(of="TOPO-07d", case="borrowed-tp2-ep4-etp1-on-4", says="rank 0 holds 2 groups of [0, 1, 2, 3]")
class MakesTheWorldAgain(Reference):
    """EP covers the whole world and gets a communicator of its own beside the world's."""

    mesh = _MakesTheWorldAgain


class _NeverCloses(ProcessMesh):
    def close(self) -> None:
        self._made.clear()


@mutant(of="TOPO-07e", case="own-axis-pp2-tp2-on-4", says="is left with 2 groups of closed meshes: [0, 2], [0, 1]")
class LeavesItsGroupsBehind(Reference):
    """Drops its handles and calls that a close; torch still holds the groups."""

    mesh = _NeverCloses


class _ClosesOne(ProcessMesh):
    def close(self) -> None:
        first = next(members for members in self._made if self.rank in members)
        self._dist.destroy_process_group(self._made[first])
        self._made.clear()


@mutant(of="TOPO-07e", case="own-axis-ep2-tp2-etp1-on-4", says="is left with 1 groups of closed meshes")
class ClosesTheFirstAlone(Reference):
    """Destroys only the group that it finds first."""

    mesh = _ClosesOne


class _ClosesAll(ProcessMesh):
    def close(self) -> None:
        self._dist.barrier()
        self._dist.destroy_process_group()


@mutant(of="TOPO-07e", case="borrowed-cp2-ep2-on-4", says="has lost [0, 1, 2, 3]")
class ClosesTheWorldToo(Reference):
    """Over-correction of the leak: `destroy_process_group()` without a group destroys the world as well."""

    mesh = _ClosesAll


@mutant(of="TOPO-07d", case="borrowed-cp2-ep2-on-4", says="of which each has its own")
class DeclaresAGroupForEachAxis(Reference):
    """Declares one group for each purpose and holds one for all axes of the same members."""

    conventions = {"communicators": "purpose"}
