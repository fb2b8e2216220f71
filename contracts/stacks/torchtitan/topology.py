"""The meshes that torchtitan's ParallelDims builds, seen from several ranks of a simulated world that moves no data.

Axes are read off the views of the world mesh: our dp is its `batch`, dp_cp its `loss`, edp its `dp_replicate` and
`efsdp`. Nothing here computes a group. The mesh and torch's process group must agree on this rank's group, and three
ranks of the world must see the same meshes.

With EP on, 0.3.0 does not shard experts by TP (expert TP 1); with EP off it shards them like dense parameters. 0.2.2
has an axis for expert TP.
"""

import dataclasses
import importlib
from typing import Any

from contracts.spec import Degrees, Group, Lack, Layout, LiveMesh, NotOffered, Topology, refuse

VIEWS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "pp": (("dataloading", ("pp",)),),
    "dp": (("dataloading", ("batch",)),),
    "cp": (("dataloading", ("cp",)),),
    "tp": (("dataloading", ("tp",)),),
    "dp_cp": (("dataloading", ("batch", "cp")),),
    "ep": (("sparse", ("ep",)),),
    "edp": (("sparse", ("dp_replicate", "efsdp")),),
    "etp": (("sparse", ("etp",)),),
}
"""Our axis → the view of the world mesh, and the dims of the view that form the axis."""
OWN = {"pp": "pp", "dp": "batch", "cp": "cp", "tp": "tp", "ep": "ep"}
"""Our axis → torchtitan's one-dimensional mesh with this rank's process group."""
LIVE = {**OWN, "dp_cp": "loss", "edp": "efsdp"}
"""The same and more, where all ranks shard. Without EP, experts have no axes of their own."""


def topology(degrees: Degrees, world: int, layout: Layout) -> Topology:
    """Sizes and groups of every axis.

    Raises:
        Refused: torchtitan refuses the degrees; in its own words.
        NotOffered: it has no such expert TP, or no such layout.
    """
    from torchtitan.distributed.parallel_dims import ParallelDims

    from contracts.stacks.kit import worlds

    known = _in_its_layout(ParallelDims, degrees, layout)
    whole = _whole_experts(degrees, known)
    groups: dict[str, tuple[Group, ...]] = {}
    for rank in sorted({0, world // 2, world - 1} if world > 0 else {0}):
        with worlds.pretended(world, rank):
            seen = _seen(_built(ParallelDims, known, degrees, world), whole, rank)
        if groups and seen != groups:
            raise RuntimeError(f"rank {rank} sees other meshes than rank 0")
        groups = seen
    return Topology(
        world=world, layout="borrowed", dp=len(groups["dp"][0]), expert_dp=len(groups["edp"][0]),
        sizes={axis: len(members[0]) for axis, members in groups.items()}, groups=groups,
    )  # fmt: skip


def _in_its_layout(kind: Any, degrees: Degrees, layout: Layout) -> set[str]:
    """The axes of this version's ParallelDims, where the layout is its own."""
    if layout != "borrowed":
        lack: Lack = "stack" if degrees.ep > 1 else "case"  # without EP both layouts have the same ranks
        words = "torchtitan carves experts out of the data-parallel and tensor-parallel ranks: borrowed"
        raise NotOffered(words, lack)
    return {each.name for each in dataclasses.fields(kind)}


def _whole_experts(degrees: Degrees, known: set[str]) -> bool:
    """Whether experts are not sharded by TP, if this version has a choice."""
    if "etp" in known:
        if degrees.expert_tp not in (1, degrees.tp):
            raise NotOffered("torchtitan 0.2.2: an expert TP is 1 or TP, it says", "stack")
        return degrees.expert_tp == 1
    if degrees.ep > 1 and degrees.expert_tp != 1:
        raise NotOffered("torchtitan 0.3.0: experts are whole on a rank with EP; 0.2.2 has an expert TP", "stack")
    if degrees.ep == 1 and degrees.expert_tp != degrees.tp:
        raise NotOffered("torchtitan 0.3.0: experts are cut as the rest is without EP", "stack")
    return degrees.ep > 1


def _built(kind: Any, known: set[str], degrees: Degrees, world: int) -> Any:
    """ParallelDims with its meshes. Its errors about the degrees become refusals."""
    from contracts.stacks.torchtitan import symbols  # torch, which torchtitan has loaded by now

    given = {
        "dp_replicate": 1, "dp_shard": -1, "cp": degrees.cp, "tp": degrees.tp, "pp": degrees.pp, "ep": degrees.ep,
        "etp": degrees.expert_tp, "world_size": world, **symbols.dtensors(),
    }  # fmt: skip
    try:
        dims = kind(**{name: value for name, value in given.items() if name in known})
    except (AssertionError, ValueError) as error:
        raise refuse("degrees", degrees, f"torchtitan: {error or 'an assertion without words'}", "change one") from None
    try:
        dims.build_mesh()
    except (AssertionError, ValueError, RuntimeError) as error:
        raise refuse("degrees", degrees, f"torchtitan, building the mesh: {error}", "change a degree") from None
    return dims


def _seen(dims: Any, whole: bool, rank: int) -> dict[str, tuple[Group, ...]]:
    """Every axis with its groups, read off the views; without EP, experts have the dense layout."""
    found = {}
    for axis, ((view, of),) in VIEWS.items():
        mesh = dims._global_meshes[view]
        if all(name in mesh.mesh_dim_names for name in of):
            found[axis] = _groups(mesh, of)
    single = tuple((rank,) for rank in range(dims.world_size))
    if "etp" not in found:
        found["etp"] = single if whole else found["tp"]
        found["edp"] = found["edp"] if whole else found["dp_cp"]
    for axis, name in OWN.items():
        mine = next(group for group in found[axis] if rank in group)
        held = dims.get_optional_mesh(name)
        if held is not None and tuple(_members(held)) != mine:
            raise RuntimeError(f"the {axis} group of rank {rank} is {_members(held)}, and its mesh says {mine}")
    return found


def live_mesh(degrees: Degrees, world: int, layout: Layout, contribution: int) -> LiveMesh:
    """The groups of its meshes on this rank. It closes none: its `train.main` ends all groups with the process.

    Raises:
        Refused: torchtitan refuses the degrees; in its own words.
        NotOffered: it has no such expert TP, or no such layout.
    """
    from torchtitan.distributed.parallel_dims import ParallelDims

    from contracts.stacks.kit import worlds

    known = _in_its_layout(ParallelDims, degrees, layout)
    _whole_experts(degrees, known)

    def build() -> dict[str, Any]:
        importlib.import_module("torch.distributed.fsdp")  # as its trainer does: the fake backend comes with it
        dims = _built(ParallelDims, known, degrees, world)
        return {axis: dims.get_optional_mesh(name) for axis, name in LIVE.items() if axis != "edp" or degrees.ep > 1}

    return worlds.live_mesh(build, contribution)


def _groups(mesh: Any, of: tuple[str, ...]) -> tuple[Group, ...]:
    """The groups over some dims of a mesh, by first member: its tensor of ranks with those dims last, by rows."""
    ranks, names = mesh.mesh, list(mesh.mesh_dim_names)
    rest = [index for index, name in enumerate(names) if name not in of]
    kept = [names.index(name) for name in of]
    size = 1
    for index in kept:
        size *= ranks.shape[index]
    rows = ranks.permute(*rest, *kept).reshape(-1, size).tolist()
    return tuple(sorted(tuple(row) for row in rows))


def _members(mesh: Any) -> list[int]:
    import torch.distributed as dist

    return list(dist.get_process_group_ranks(mesh.get_group()))
