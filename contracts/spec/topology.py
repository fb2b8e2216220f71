"""Degrees → topology: the size of each axis, the members of its groups, and the order in which groups are created.

Two layouts are in use and both are legal. A stack declares which one it has:

- `own-axis`: world = pp · dp · ep · tp. EP is an axis of its own; its ranks share one batch.
- `borrowed`: world = pp · dp · cp · tp. EP is carved out of dp · cp · tp (Megatron-Core, torchtitan).

Axes are listed from slowest to fastest varying rank. PP is always outermost and TP innermost, so that a TP group
stays inside one node. Dense parameters use the dense axes and experts the expert axes; both cover the same world.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from contracts.spec.errors import Refusals, refuse

Layout = Literal["own-axis", "borrowed"]
Kind = Literal["dense", "expert"]
Group = tuple[int, ...]

MAX_WORLD = 2**20  # sixteen times the largest simulated world; a mistyped world must not fill the memory
NVLINK_DOMAIN = 8  # GPUs of one H200 node, connected by NVSwitch


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """The parallel degrees of a recipe. `etp` 0 means "follow TP"; data parallelism takes the remaining ranks."""

    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    sp: bool = False

    def __post_init__(self) -> None:
        found = Refusals()
        for name in ("pp", "tp", "cp", "ep"):
            degree = getattr(self, name)
            found.unless(degree >= 1, name, degree, "must be at least 1", "1 switches the axis off")
        found.unless(self.etp >= 0, "etp", self.etp, "must not be negative", "0 follows tp")
        found.unless(
            not self.sp or self.tp > 1, "sp", self.sp, f"needs tp > 1 (tp is {self.tp})", "drop sp or raise tp"
        )
        found.raise_any()

    @property
    def expert_tp(self) -> int:
        """The tensor-parallel degree of the experts, with "follow TP" resolved."""
        return self.etp or self.tp

    @property
    def ep_active(self) -> bool:
        """EP is active iff its degree exceeds 1. The bug was to look for a mesh object instead."""
        return self.ep > 1


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The mesh a stack builds for some degrees and a world.

    The keys of `sizes` and `groups` are the axes pp, dp, cp, tp (dense), ep, etp, edp (experts) and dp_cp, the ranks
    over which a dense gradient is reduced. Every axis has groups, including singletons. `dp` is the number of ranks
    that read different data within one pipeline stage.
    """

    world: int
    layout: Layout
    dp: int
    expert_dp: int
    sizes: Mapping[str, int]
    groups: Mapping[str, tuple[Group, ...]]


@dataclass(frozen=True, kw_only=True)
class GroupCall:
    """One `new_group` call of a rank: the members and the axes that share the group."""

    members: Group
    axes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GradientReduction:
    """The ranks over which a rank's gradient is summed, and the divisor of the sum."""

    ranks: Group
    divisor: int


@dataclass(frozen=True, kw_only=True)
class ExpertLane:
    """How an expert layer is wired, with the field names of the bring-up trace.

    `router_in` is the shape (batch, sequence, hidden) that the router receives on one rank.
    """

    ep_active: bool
    ep_local: bool
    manual_sp: bool
    ep_lane: bool
    router_in: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """One grid over the world: its axes and their sizes, slowest varying first."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def world(self) -> int:
        return math.prod(self.sizes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinate of a rank on each axis."""
        if not 0 <= rank < self.world:
            raise refuse("rank", rank, f"must lie in 0 … {self.world - 1}", "count ranks from 0")
        places = {}
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            rank, places[axis] = divmod(rank, size)
        return {axis: places[axis] for axis in self.axes}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at these coordinates: the inverse of `coordinates`."""
        rank = 0
        for axis, size in zip(self.axes, self.sizes, strict=True):
            place = coordinates[axis]
            if not 0 <= place < size:
                raise refuse(axis, place, f"must lie in 0 … {size - 1}", "stay inside the axis")
            rank = rank * size + place
        return rank

    def groups(self, *axes: str) -> tuple[Group, ...]:
        """All groups whose members differ only on `axes`, ordered by first member."""
        strides = dict(zip(self.axes, _strides(self.sizes), strict=True))
        spans = dict(zip(self.axes, self.sizes, strict=True))
        offsets, origins = [0], [0]
        for axis in self.axes:
            steps = [strides[axis] * place for place in range(spans[axis])]
            if axis in axes:
                offsets = [base + step for base in offsets for step in steps]
            else:
                origins = [base + step for base in origins for step in steps]
        return tuple(tuple(origin + offset for offset in offsets) for origin in origins)


@dataclass(frozen=True, kw_only=True)
class Grids:
    """The two grids over one world: one for dense parameters and one for experts."""

    dense: Mesh
    expert: Mesh
    reduced: Mapping[Kind, tuple[str, ...]] = field(repr=False)
    """The axes over which gradients of each kind are summed."""


def grids(degrees: Degrees, world: int, layout: Layout) -> Grids:
    """The two grids of these degrees over a world.

    Raises:
        Refused: when the axes do not multiply to the world, with both numbers; all relations at once.
    """
    pp, tp, cp, ep, etp = degrees.pp, degrees.tp, degrees.cp, degrees.ep, degrees.expert_tp
    found = Refusals()
    found.unless(1 <= world <= MAX_WORLD, "world", world, f"must lie in 1 … {MAX_WORLD}", "give the number of ranks")
    remedy = "change a degree or the number of ranks"
    if layout == "own-axis":
        found.unless(cp == 1, "cp", cp, "is not an axis of the own-axis layout", "use the borrowed layout")
        problem = f"must be etp 0, 1 or tp ({tp}) in the own-axis layout"
        found.unless(degrees.etp in (0, 1, tp), "etp", degrees.etp, problem, "0 follows tp")
        if world >= 1:
            product = pp * ep * tp
            found.unless(
                world % product == 0, "world", world, f"must be a multiple of pp * ep * tp ({product})", remedy
            )
        found.raise_any()
        dp = world // (pp * ep * tp)
        dense = Mesh(axes=("pp", "dp", "ep", "tp"), sizes=(pp, dp, ep, tp))
        # With etp 1 a TP rank holds whole experts, so the TP axis replicates them.
        expert = dense if etp == tp else Mesh(axes=("pp", "dp", "ep", "etp_replica"), sizes=(pp, dp, ep, tp))
        over = ("dp",) if etp == tp else ("dp", "etp_replica")
        return Grids(dense=dense, expert=expert, reduced={"dense": ("dp",), "expert": over})
    if world >= 1:
        product = pp * cp * tp
        found.unless(world % product == 0, "world", world, f"must be a multiple of pp * cp * tp ({product})", remedy)
        product = pp * etp * ep
        found.unless(world % product == 0, "world", world, f"must be a multiple of pp * etp * ep ({product})", remedy)
    found.raise_any()
    return Grids(
        dense=Mesh(axes=("pp", "dp", "cp", "tp"), sizes=(pp, world // (pp * cp * tp), cp, tp)),
        expert=Mesh(axes=("pp", "edp", "ep", "etp"), sizes=(pp, world // (pp * etp * ep), ep, etp)),
        reduced={"dense": ("dp", "cp"), "expert": ("edp",)},
    )


def topology(degrees: Degrees, world: int, layout: Layout) -> Topology:
    """Every axis with its size and its groups, enumerated.

    Raises:
        Refused: when the axes do not multiply to the world.
    """
    both = grids(degrees, world, layout)
    groups: dict[str, tuple[Group, ...]] = {
        axis: both.dense.groups(axis) for axis in ("pp", "dp", "cp", "tp") if axis in both.dense.axes
    }
    groups.setdefault("cp", both.dense.groups())
    groups["dp_cp"] = both.dense.groups(*(axis for axis in ("dp", "cp") if axis in both.dense.axes))
    groups["ep"] = both.expert.groups("ep")
    groups["edp"] = both.expert.groups(*both.reduced["expert"])
    whole = degrees.expert_tp == degrees.tp
    tensor = "etp" if layout == "borrowed" else "tp"
    groups["etp"] = both.expert.groups(tensor) if layout == "borrowed" or whole else both.expert.groups()
    return Topology(
        world=world,
        layout=layout,
        dp=len(groups["dp"][0]),
        expert_dp=len(groups["edp"][0]),
        sizes={axis: len(members[0]) for axis, members in groups.items()},
        groups=groups,
    )


def group_calls(topology: Topology) -> tuple[GroupCall, ...]:
    """The `new_group` calls that every rank makes, in this order. Axes with the same members share one call."""
    calls: dict[Group, list[str]] = {}
    for axis, groups in topology.groups.items():
        for members in groups:
            calls.setdefault(members, []).append(axis)
    return tuple(GroupCall(members=members, axes=tuple(axes)) for members, axes in calls.items())


def gradient_reduction(degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind) -> GradientReduction:
    """The ranks with the same shard as `rank` and other data, and the divisor of their sum.

    The divisor is the number of ranks that read different data, for experts too. An expert's gradient is already a sum
    over the tokens of its whole EP group, so the size of the expert group would be too small a divisor.
    """
    both = grids(degrees, world, layout)
    both.dense.coordinates(rank)  # refuses a rank outside the world
    grid = both.dense if kind == "dense" else both.expert
    ranks = next(group for group in grid.groups(*both.reduced[kind]) if rank in group)
    return GradientReduction(ranks=ranks, divisor=len(both.dense.groups(*both.reduced["dense"])[0]))


def _strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[index + 1 :]) for index in range(len(sizes)))
