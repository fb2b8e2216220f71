"""Pictures of a case of several ranks: the mesh with the ranks on which it went wrong, and its pipeline schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast, get_args

from contracts.contract import LAW
from contracts.court.telling import counted
from contracts.spec.records import Item, Result
from contracts.spec.topology import Degrees, Layout, Mesh, grids
from contracts.spec.training import Execution

_WRONG, _RIGHT = "it went wrong here", "nothing went wrong, or another rank ended it"
_DOWN, _MOST = ("pp", "dp"), 512  # what is down the page; ranks of a mesh that is still looked at


@dataclass(frozen=True, kw_only=True)
class Square:
    """One rank: whether it went wrong, and whether it was the first to."""

    rank: int
    wrong: bool
    first: bool
    title: str


@dataclass(frozen=True, kw_only=True)
class MeshPicture:
    """Pipeline stages and data ranks downwards, the other axes across."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Square, ...]], ...]


def mesh_picture(results: Iterable[Result]) -> MeshPicture | None:
    """Of the first result that several ranks judged and that names ranks; None where there is none, and where the
    suite that draws does not know its case."""
    for result in results:
        if result.ranks and (mesh := _mesh(result.item)) is not None and max(result.ranks) < mesh.world <= _MOST:
            return _drawn(result, mesh)
    return None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The slots of each pipeline stage, as its schedule is defined: `F0`, `B0`, or empty where the stage waits."""

    title: str
    stages: tuple[tuple[str, ...], ...]


def schedule_picture(results: Iterable[Result]) -> Schedule | None:
    """Of the first result whose case has pipeline stages under 1F1B."""
    for result in results:
        told = _execution(_arguments(result.item))
        if told is not None and 1 < told.degrees.pp <= told.world and told.schedule == "1f1b":
            cut = counted(told.microbatches, "microbatch", "microbatches")
            title = f"The schedule that {result.item} asks for, by its definition: 1F1B, {cut}"
            return Schedule(title=title, stages=one_forward_one_backward(told.degrees.pp, told.microbatches))
    return None


def one_forward_one_backward(stages: int, microbatches: int) -> tuple[tuple[str, ...], ...]:
    """1F1B (arXiv 2104.04473): a stage begins with as many forward passes as there are stages behind it, then takes one
    of each in turn, then the backward passes that are left. Every pass is drawn as long as any other."""
    left: list[list[str]] = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, microbatches)
        turns = [word for n in range(microbatches - warm) for word in (f"F{warm + n}", f"B{n}")]
        rest = [f"B{n}" for n in range(microbatches - warm, microbatches)]
        left.append([*(f"F{n}" for n in range(warm)), *turns, *rest])
    done: list[set[str]] = [set() for _ in range(stages)]
    drawn: list[list[str]] = [[] for _ in range(stages)]
    while any(left):
        ready = [
            bool(left[stage]) and all(each in done[at] for each, at in _before(left[stage][0], stage, stages))
            for stage in range(stages)
        ]
        for stage in range(stages):
            drawn[stage].append(left[stage].pop(0) if ready[stage] else "")
        for stage in range(stages):
            done[stage].add(drawn[stage][-1])
    return tuple(map(tuple, drawn))


def _before(word: str, stage: int, stages: int) -> list[tuple[str, int]]:
    """What must be done before a pass, and on which stage."""
    if word[0] == "F":
        return [(word, stage - 1)] if stage else []
    return [(f"F{word[1:]}", stage), *([(word, stage + 1)] if stage < stages - 1 else [])]


def _arguments(item: Item) -> tuple[object, ...]:
    contract = LAW.contracts.get(item.id)
    return contract.asked.get(item.case, ()) if contract is not None else ()


def _execution(arguments: Iterable[object]) -> Execution | None:
    return next((each for each in arguments if isinstance(each, Execution)), None)


def _mesh(item: Item) -> Mesh | None:
    """The dense grid of a case: that of its execution, or of degrees, a world and a layout that stand by themselves."""
    arguments = _arguments(item)
    if (execution := _execution(arguments)) is not None:
        return grids(execution.degrees, execution.world, execution.layout).dense
    degrees = next((each for each in arguments if isinstance(each, Degrees)), None)
    layout = next((each for each in arguments if isinstance(each, str) and each in get_args(Layout)), None)
    if degrees is None or layout is None:
        return None
    return grids(degrees, LAW.contracts[item.id].ranks(item.case), cast(Layout, layout)).dense


def _drawn(result: Result, mesh: Mesh) -> MeshPicture:
    rows: dict[str, list[Square]] = {}
    columns: list[str] = []
    for rank in range(mesh.world):
        places = {
            axis: place for axis, place in mesh.coordinates(rank).items() if mesh.sizes[mesh.axes.index(axis)] > 1
        }
        down, across = (
            " ".join(f"{axis} {place}" for axis, place in places.items() if (axis in _DOWN) == vertical)
            for vertical in (True, False)
        )
        wrong = rank in result.ranks
        where = ", ".join(f"{axis} {place}" for axis, place in places.items())
        title = f"rank {rank} ({where}): {_WRONG if wrong else _RIGHT}"
        rows.setdefault(down, []).append(Square(rank=rank, wrong=wrong, first=rank == result.rank, title=title))
        if across not in columns:
            columns.append(across)
    return MeshPicture(
        title=f"The mesh of {result.item}: the ranks on which it went wrong",
        columns=tuple(columns),
        rows=tuple((name, tuple(squares)) for name, squares in rows.items()),
    )
