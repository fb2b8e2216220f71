"""The live mesh of the reference: the process groups that a rank holds, made in one order and taken down again.

Every rank of the default group makes every call, those for groups it is no member of included. A member set has one
group, whatever axes share it; the world keeps the group it has, and a single rank needs none.
"""

import weakref
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from contracts.instruments.ranks import device, torch_distributed
from contracts.spec import Execution, Refusals
from contracts.spec.topology import Grids, Group, Mesh, Topology, grids, group_calls, topology

REPLICA, SHARD = ("replica",), ("shard", "cp")
EXPERT_REPLICA, EXPERT_SHARD = ("replica",), ("shard", "etp_replica")
"""Of which axes of the grids a dim of torch's mesh consists: copies of whole experts are data-parallel too, and
the ranks of context parallel have read other tokens, so that parameters are sharded over them as well."""

TIMEOUT_S = 60.0  # `new_group` does not inherit the default group's: without one it waits for half an hour
COMPILING_S = 280.0  # a stage waits while the one before it compiles: 40 s on two idle cores, 100 s on busy ones


class ProcessMesh:
    """The groups of one topology on this rank. The default group must hold the ranks of the topology."""

    def __init__(self, topology: Topology, *, timeout_s: float = TIMEOUT_S) -> None:
        self.topology = topology
        self.calls: list[Group] = []
        self._torch, self._dist = torch_distributed()
        self._timeout = timedelta(seconds=timeout_s)
        self._made: dict[Group, Any] = {}
        self.rank = self._dist.get_rank()
        self.make()

    def make(self) -> None:
        """Every group of the mesh that is neither the world nor a single rank, each member set once."""
        for call in group_calls(self.topology):
            if 1 < len(call.members) < self.topology.world:
                self._made[call.members] = self.create(call.members, ",".join(call.axes))

    def create(self, members: Group, axes: str) -> Any:
        """One call of `new_group`. The description names the axes in the flight recorder."""
        self.calls.append(members)
        return self._dist.new_group(list(members), timeout=self._timeout, group_desc=axes)

    def place(self, axis: str) -> Group:
        """The members of the group that this rank has on an axis, as the topology has them."""
        return next(group for group in self.topology.groups[axis] if self.rank in group)

    def group(self, axis: str) -> Any:
        """The process group of an axis; None if this rank is the only one on it."""
        members = self.place(axis)
        if len(members) == 1:
            return None
        return self._dist.group.WORLD if len(members) == self.topology.world else self._made[members]

    def members(self, axis: str) -> Group:
        """The members of the process group of an axis, by rank in the group, as the group itself has them."""
        group = self.group(axis)
        return (self.rank,) if group is None else tuple(self._dist.get_process_group_ranks(group))

    def total(self, axis: str, contribution: int) -> int:
        """The sum of what the ranks of an axis contribute, at most 2⁶³ − 1."""
        group = self.group(axis)
        if group is None:
            return contribution
        total = self._torch.tensor([contribution], dtype=self._torch.int64, device=device())
        self._dist.all_reduce(total, group=group)
        return int(total.item())

    def close(self) -> None:
        """Take down what `make` made; the world stays."""
        for members, group in self._made.items():
            if self.rank in members:
                self._dist.destroy_process_group(group)
        self._made.clear()


class TrainingMesh(ProcessMesh):
    """The groups that a training run needs, and torch's views of them. The groups are made once and shared by all.

    Beside the axes of the topology these have groups: `rows`, the ranks that read other sequences; `replica` and
    `shard`, the ranks of dp_cp as copies of sharded parameters and as those between which one copy is sharded;
    `expert_replica` and `expert_shard`, likewise for experts; `sharers`, the ranks that route the same tokens;
    `apart`, those that route other ones.
    """

    def __init__(self, execution: Execution) -> None:
        self.execution, self.degrees = execution, execution.degrees
        self.grids = _split(grids(self.degrees, execution.world, execution.layout), execution)
        super().__init__(
            self._with_views(topology(self.degrees, execution.world, execution.layout)),
            timeout_s=TIMEOUT_S if execution.compile == "none" else COMPILING_S,
        )
        _forget_closed_groups(makes_groups=bool(self._made))
        self.dense = self.view(self.grids.dense, {"replica": REPLICA, "shard": SHARD, "tp": ("tp",)})
        kept = {"replica": EXPERT_REPLICA, "shard": EXPERT_SHARD, "ep": ("ep",), "etp": ("etp",)}
        self.expert = self.view(self.grids.expert, kept)

    @property
    def lane(self) -> bool:
        """Whether rows are sent to their experts; else an expert is cut like any other mixer, or whole."""
        return self.degrees.ep_active or self.degrees.expert_tp != self.degrees.tp

    def _with_views(self, made: Topology) -> Topology:
        dense, expert, tp = self.grids.dense, self.grids.expert, ("tp",)
        same: tuple[str, ...] = ("ep",) if self.execution.layout == "own-axis" else ()
        same += () if self.degrees.sp else tp
        more = {
            "rows": dense.groups("replica", "shard"),
            "replica": dense.groups(*REPLICA),
            "shard": dense.groups(*SHARD),
            "expert_replica": _groups(expert, EXPERT_REPLICA),
            "expert_shard": _groups(expert, EXPERT_SHARD),
            "sharers": dense.groups(*same) if self.lane else dense.groups(),
            "apart": dense.groups(*REPLICA, *SHARD, *(tp if self.lane and self.degrees.sp else ())),
        }
        groups = {**made.groups, **more}
        return replace(made, groups=groups, sizes={axis: len(members[0]) for axis, members in groups.items()})

    def view(self, grid: Mesh, dims: Mapping[str, tuple[str, ...]]) -> Any:
        """A DeviceMesh over this rank's ranks of some axes, from the groups that exist; axes of one rank left out.

        None if this rank is the only one on all of them.
        """
        from torch.distributed.device_mesh import DeviceMesh

        axes = {name: tuple(axis for axis in of if axis in grid.axes) for name, of in dims.items()}
        sizes = {name: len(grid.groups(*of)[0]) for name, of in axes.items()}
        names = tuple(name for name, size in sizes.items() if size > 1)
        if not names:
            return None
        every = next(group for group in grid.groups(*sum(axes.values(), ())) if self.rank in group)
        ranks = self._torch.tensor(sorted(every, key=lambda rank: _place(grid, rank, axes))).view(
            [sizes[name] for name in names]
        )
        groups = [self.of(next(group for group in grid.groups(*axes[name]) if self.rank in group)) for name in names]
        return DeviceMesh.from_group(groups, self.execution.device, mesh=ranks, mesh_dim_names=names)

    def of(self, members: Group) -> Any:
        """The process group of some members."""
        return self._dist.group.WORLD if len(members) == self.topology.world else self._made[members]


_only_group: list[weakref.ref[Any]] = []  # the default group, while torch knows meshes of that group alone


def _forget_closed_groups(*, makes_groups: bool) -> None:
    """Let torch forget the meshes of earlier runs, unless those had no group but the default one, as the next has. What
    it worked out on them stays right, and that is most of what it takes to shard a small model."""
    _, dist = torch_distributed()
    world = dist.group.WORLD
    if makes_groups or not any(group() is world for group in _only_group):
        forget_meshes()
    _only_group[:] = [] if makes_groups else [weakref.ref(world)]


def forget_meshes() -> None:
    """Let torch forget all meshes that it has seen, those of the default group too."""
    from contracts.stacks.kit import worlds

    _only_group.clear()
    worlds.forget_meshes()


def _place(grid: Mesh, rank: int, axes: Mapping[str, tuple[str, ...]]) -> tuple[int, ...]:
    """Where a rank stands on each of some axes."""
    at = grid.coordinates(rank)
    return tuple(at[axis] for of in axes.values() for axis in of)


def _groups(grid: Mesh, axes: tuple[str, ...]) -> tuple[Group, ...]:
    return grid.groups(*(axis for axis in axes if axis in grid.axes))


def _split(both: Grids, execution: Execution) -> Grids:
    """The grids with data parallelism cut into replicas and shards."""
    replicas = execution.replicas
    found = Refusals()
    cut = []
    for grid, axis, tensor in (
        (both.dense, "dp", "tp"),
        (both.expert, "edp" if "edp" in both.expert.axes else "dp", "etp"),
    ):
        size = grid.sizes[grid.axes.index(axis)]
        found.unless(size % replicas == 0, "replicas", replicas, f"must divide {axis} ({size})", "choose a divisor")
        at = grid.axes.index(axis)
        axes = (*grid.axes[:at], "replica", "shard", *grid.axes[at + 1 :])
        sizes = (*grid.sizes[:at], replicas, size // replicas, *grid.sizes[at + 1 :])
        axes = tuple(tensor if each == "tp" else each for each in axes)
        cut.append(Mesh(axes=axes, sizes=sizes))
    found.raise_any()
    return Grids(dense=cut[0], expert=cut[1], reduced=both.reduced)
