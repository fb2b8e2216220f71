"""A mesh computed by brute force, rank by rank, and random topologies to compare with it.

Nothing here shares code or arithmetic with `contracts.spec.topology`: coordinates come from dividing a rank by hand,
and groups from collecting the ranks that agree in every other coordinate.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import combinations

from contracts.spec import Degrees, Group, Layout

Members = frozenset[int]
LARGEST_WORLD = 512
DRAWS = 300


@cache
def drawn(layout: Layout) -> tuple[tuple[Degrees, int], ...]:
    """`DRAWS` degrees with a world of at most 512 ranks, the same on every machine; about two in five are legal.

    Drawn when first asked for, so that importing the law costs nothing.
    """
    dice = random.Random(f"topologies of the {layout} layout")  # seeded by text: independent of hash seeds
    return tuple(_draw(dice, layout) for _ in range(DRAWS))


def _draw(dice: random.Random, layout: Layout) -> tuple[Degrees, int]:
    while True:
        pp, tp = dice.choice((1, 1, 2, 3, 4, 6)), dice.choice((1, 2, 2, 3, 4, 8))
        ep = dice.choice((1, 2, 3, 4, 5, 8, 12))
        cp = dice.choice((1, 1, 2, 3, 4)) if layout == "borrowed" else 1
        etp = dice.choice((0, 0, 1, tp, 2, 3)) if layout == "borrowed" else dice.choice((0, 1, tp))
        degrees = Degrees(pp=pp, tp=tp, cp=cp, ep=ep, etp=etp)
        world = pp * tp * cp * dice.choice((1, 2, 3, 4, 5, 8, 12, 16, 24)) * dice.choice((1, ep))
        world += dice.choice((0, 0, 0, 0, 1, pp, tp))  # near misses: one axis still divides, the product does not
        if world <= LARGEST_WORLD:
            return degrees, world


def is_legal(degrees: Degrees, world: int, layout: Layout) -> bool:
    """Whether the axes tile the world: found by counting up multiples, without a remainder operation."""
    tensor = degrees.etp if degrees.etp > 0 else degrees.tp
    if layout == "own-axis":
        return world in range(0, world + 1, degrees.pp * degrees.ep * degrees.tp)
    dense = range(0, world + 1, degrees.pp * degrees.cp * degrees.tp)
    expert = range(0, world + 1, degrees.pp * tensor * degrees.ep)
    return world in dense and world in expert


def borrowed(degrees: Degrees, world: int) -> dict[str, set[Members]]:
    """Every group of a legal borrowed topology, in Megatron's default order tp-cp-ep-dp-pp, fastest axis first."""
    tensor = degrees.etp if degrees.etp > 0 else degrees.tp
    dense = {"tp": degrees.tp, "cp": degrees.cp, "dp": None, "pp": degrees.pp}
    expert = {"etp": tensor, "ep": degrees.ep, "edp": None, "pp": degrees.pp}
    groups = {axis: _alike(dense, world, {axis}) for axis in dense}
    groups["dp_cp"] = _alike(dense, world, {"dp", "cp"})
    groups |= {axis: _alike(expert, world, {axis}) for axis in ("etp", "ep", "edp")}
    return groups


def _alike(axes: Mapping[str, int | None], world: int, free: set[str]) -> set[Members]:
    """The ranks that agree on every axis but `free`. One size may be None: it follows from the others."""
    known = 1
    for size in axes.values():
        known *= size or 1
    agreeing: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for rank in range(world):
        rest, places = rank, []
        for axis, size in axes.items():
            rest, place = divmod(rest, size or world // known)
            if axis not in free:
                places.append(place)
        agreeing[tuple(places)].add(rank)
    return {frozenset(members) for members in agreeing.values()}


def flaw_of_partition(groups: Iterable[Group], world: int) -> str | None:
    """Why groups are not a partition of the world into equal parts, in words; None when they are one."""
    listed = [rank for members in groups for rank in members]
    if outside := sorted({rank for rank in listed if not 0 <= rank < world}):
        return f"rank {outside[0]} is no rank of a world of {world}"
    if missing := sorted(set(range(world)).difference(listed)):
        return f"rank {missing[0]} is in no group"
    if len(listed) > world:
        twice, _ = Counter(listed).most_common(1)[0]
        return f"rank {twice} is in two groups"
    sizes = sorted({len(members) for members in groups})
    return f"groups have {sizes} members" if len(sizes) > 1 else None


def flaw_of_grid(groups: Mapping[str, tuple[Group, ...]], axes: tuple[str, ...], world: int) -> str | None:
    """Why coordinates are not a bijection, read only from the groups; None when they are one.

    Groups of two axes meet in at most one rank. A rank's place on an axis is the part of the world that can be reached
    from it along every other axis. Two ranks with the same places on all axes, or an axis whose places are not as many
    as its groups have members, mean that the groups do not form one grid.
    """
    for this, that in combinations(axes, 2):
        if shared := _shared(groups[this], groups[that], world):
            return f"a {this} and a {that} group share ranks {shared[0]} and {shared[1]}"
    places = [_parts(world, [group for other in axes if other != axis for group in groups[other]]) for axis in axes]
    for axis, parts in zip(axes, places, strict=True):
        found, size = len(set(parts)), len(groups[axis][0])
        if found != size:
            return f"{axis} groups have {size} members, but the other axes leave {found} places on it"
    standing: dict[tuple[int, ...], int] = {}
    for rank, place in enumerate(zip(*places, strict=True)):
        if (other := standing.setdefault(place, rank)) != rank:
            return f"ranks {other} and {rank} stand at the same place on {', '.join(axes)}"
    return None


def _shared(some: tuple[Group, ...], others: tuple[Group, ...], world: int) -> tuple[int, int] | None:
    """Two ranks that meet in a group of one axis and again in a group of the other."""
    at = [0] * world
    for index, members in enumerate(others):
        for rank in members:
            at[rank] = index
    for members in some:
        if len({at[rank] for rank in members}) < len(members):
            met: dict[int, int] = {}
            for rank in members:
                if (first := met.setdefault(at[rank], rank)) != rank:
                    return first, rank
    return None


def _parts(world: int, groups: Iterable[Group]) -> list[int]:
    """The connected component of every rank, named by one of its members, when each group connects its members."""
    part = list(range(world))
    held: dict[int, list[int]] = {}  # part → its members, once it has more than one
    for members in groups:
        if len(members) == 1:
            continue
        parts = {part[rank] for rank in members}
        if len(parts) == 1:
            continue
        joined = [held.pop(each, [each]) for each in parts]
        largest = max(joined, key=len)
        name = part[largest[0]]
        for others in joined:
            if others is not largest:
                largest += others
                for rank in others:
                    part[rank] = name
        held[name] = largest
    return part
