"""Stacks that make their process groups wrongly in one place of a running job."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from contracts.law._bugs.numeric import PipelineTrainer, broken, derived, with_attributes
from contracts.spec import Mesh, group_calls
from contracts.stacks.reference.parallel.mesh import ProcessMesh


@broken(
    ProcessMesh,
    "place",
    "TOPO-05d[own-axis-pp2-tp2-on-4]: holds [0, 1] as its pp group, expected [0, 2]",
    bugs=("PG-01",),
)
def builds_the_live_mesh_inside_out(place, self, axis):
    """Builds the dimensions in the order dp, tp, pp: pipeline neighbours are adjacent and TP crosses the stages."""
    sizes = self.topology.sizes
    mesh = Mesh(axes=("dp", "tp", "pp"), sizes=(sizes["dp"], sizes["tp"], sizes["pp"]))
    if axis not in mesh.axes:
        return place(self, axis)
    return next(group for group in mesh.groups(axis) if self.rank in group)


@broken(ProcessMesh, "place", "TOPO-05d[borrowed-cp2-ep2-on-4]: as its edp group, expected")
def replicates_experts_on_neighbours(place, self, axis):
    """Takes the ranks that share an expert shard to be consecutive; their gradients average other experts."""
    members = place(self, axis)
    first = self.rank - self.rank % len(members)
    return tuple(range(first, first + len(members))) if axis == "edp" else members


@broken(
    ProcessMesh, "members", "TOPO-05d[own-axis-ep2-tp2-etp1-on-4]: rank 2 holds [0, 1] as its tp group, expected [2, 3]"
)
def numbers_ranks_within_the_group(former, self, axis):
    """Gives ranks within the group where global ranks are needed: right as long as a group begins at rank 0."""
    members = former(self, axis)
    return tuple(rank - members[0] for rank in members) if axis == "tp" else members


@broken(
    ProcessMesh,
    "total",
    "TOPO-05f[borrowed-cp2-ep2-on-4]: over the cp group [0, 1] of rank 0 is 15, expected 3",
    bugs=("PG-25",),
)
def forgets_the_group_argument(former, self, axis, contribution):
    """The exchange across context-parallel ranks leaves out `group=` and runs on the world."""
    if axis != "cp" or len(self.place(axis)) == 1:
        return former(self, axis, contribution)
    total = self._torch.tensor([contribution])
    self._dist.all_reduce(total)
    return int(total.item())


@broken(ProcessMesh, "total", "TOPO-05f[own-axis-pp2-tp2-on-4]: over the tp group [0, 1] of rank 0 is 5, expected 3")
def reuses_a_group_of_equal_size(total, self, axis, contribution):
    """Over-correction of the duplicate group: any group of the same size is taken for the same group."""
    size = self.topology.sizes[axis]
    first = next(name for name, its in self.topology.sizes.items() if its == size)
    return total(self, first, contribution)


@broken(
    ProcessMesh, "total", "TOPO-05f[own-axis-ep2-tp2-etp1-on-4]: over the edp group [0, 1] of rank 0 is 6, expected 3"
)
def reduces_a_shared_group_twice(former, self, axis, contribution):
    """TP and expert replicas share one group, and each of them reduces what passes through it."""
    total = former(self, axis, contribution)
    return former(self, axis, total) if axis == "edp" else total


@broken(ProcessMesh, "create", "TOPO-06d[own-axis-pp2-tp2-on-4]: call 0 creates [0, 2] on rank 0 and [1, 3] on rank 1")
def makes_its_own_groups_alone(create, self, members, axes):
    """A rank creates only the groups that it belongs to, to save time at start-up."""
    if self.rank not in members:
        return None
    self.calls.append(members)
    timeout = timedelta(seconds=20)
    return self._dist.new_group(list(members), timeout=timeout, use_local_synchronization=True, group_desc=axes)


@broken(
    ProcessMesh, "make", "TOPO-06d[own-axis-ep2-tp2-etp1-on-4]: call 0 creates [0, 1] on rank 0 and [0, 2] on rank 3"
)
def walks_a_foreign_groups_set(make, self):
    """The last rank takes the groups it is no member of from a set. Its own are in order, so nothing hangs yet."""
    calls = [call.members for call in group_calls(self.topology) if 1 < len(call.members) < self.topology.world]
    last = self.rank == self.topology.world - 1
    foreign = iter([members for members in reversed(calls) if self.rank not in members])
    for members in calls:
        chosen = next(foreign) if last and self.rank not in members else members
        self._made[chosen] = self.create(chosen, "")


@broken(ProcessMesh, "make", "TOPO-06d[borrowed-tp2-ep4-etp1-on-4]: groups and rank 3")
def the_last_stage_makes_one_more(make, self):
    """Only the rank that owns the MTP layers makes a group for them."""
    make(self)
    if self.rank == self.topology.world - 1:
        alone = (self.rank,)
        self.calls.append(alone)
        self._made[alone] = self._dist.new_group([self.rank], use_local_synchronization=True)


class _AlwaysMakes(ProcessMesh):
    """Makes one more group for an axis, even when one exists."""

    axis = "dp"

    def make(self) -> None:
        super().make()
        for number, members in enumerate(self.topology.groups[self.axis]):
            if len(members) > 1:
                self._made[(*members, -1 - number)] = self.create(members, f"{self.axis} again")


with_attributes(
    "MakesAPipelineGroupBesideDp",
    "Makes a group for each axis, although the group of another axis has the same members.",
    "TOPO-07d[borrowed-cp2-ep2-on-4]: rank 0 holds 2 groups of [0, 2]",
    owner=_AlwaysMakes,
    bugs=("PG-09",),
)

with_attributes(
    "MakesTheWorldAgain",
    "EP covers the whole world and gets a communicator of its own beside the world's.",
    "TOPO-07d[borrowed-tp2-ep4-etp1-on-4]: rank 0 holds 2 groups of [0, 1, 2, 3]",
    owner=_AlwaysMakes,
    axis="ep",
)


@broken(ProcessMesh, "close", "TOPO-07e[own-axis-pp2-tp2-on-4]: is left with 2 groups of closed meshes: [0, 2], [0, 1]")
def leaves_its_groups_behind(close, self):
    """Drops its handles and calls that a close; torch still holds the groups."""
    self._made.clear()


@broken(ProcessMesh, "close", "TOPO-07e[own-axis-ep2-tp2-etp1-on-4]: is left with 1 groups of closed meshes")
def closes_the_first_alone(close, self):
    """Destroys only the group that it finds first."""
    first = next(members for members in self._made if self.rank in members)
    self._dist.destroy_process_group(self._made[first])
    self._made.clear()


@broken(ProcessMesh, "close", "TOPO-07e[borrowed-cp2-ep2-on-4]: has lost [0, 1, 2, 3]")
def closes_the_world_too(close, self):
    """Over-correction of the leak: `destroy_process_group()` without a group destroys the world as well."""
    self._dist.barrier()
    self._dist.destroy_process_group()


with_attributes(
    "DeclaresAGroupForEachAxis",
    "Declares one group for each purpose and holds one for all axes of the same members.",
    "TOPO-07d[borrowed-cp2-ep2-on-4]: of which each has its own",
    conventions={"communicators": "purpose"},
)


@derived(
    "TOPO-07f[the-world]: a group of all 2 ranks besides the default group",
    "TOPO-07f[two-of-four]: makes 2 groups of [0, 2]",
    bugs=("PG-09",),
)
class MakesAGroupBesideTheWorld(PipelineTrainer):
    """The pipeline makes its own group, although the mesh or the data-parallel group has the same ranks."""

    made: Any = None

    @property
    def group(self) -> Any:
        if self.made is None:
            for members in self.mesh.topology.groups["pp"]:
                group = dist.new_group(list(members))
                self.made = group if self.mesh.rank in members else self.made
        return self.made
