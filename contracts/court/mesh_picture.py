"""Pictures of a case of several ranks: the mesh with the ranks on which it went wrong, and its pipeline schedule."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from contracts.contract import LAW
from contracts.court.wording import counted
from contracts.spec import Degrees, Execution, Layout, Mesh, Recipe, grids
from contracts.spec.records import Item, Result

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
class Pass:
    """A forward (F) or backward (B) pass of one microbatch through one stage."""

    kind: Literal["F", "B"]
    microbatch: int
    stage: int


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The slots of each pipeline rank, as its schedule is defined: a pass, or None where the rank waits. Rank r has the
    stages r, r + `ranks`, … of `stages`."""

    title: str
    stages: int
    ranks: tuple[tuple[Pass | None, ...], ...]


def schedule_picture(results: Iterable[Result]) -> Schedule | None:
    """Of the first result whose case has a pipeline and a number of stages and microbatches that its schedule has."""
    for result in results:
        arguments = _arguments(result.item)
        told = _execution(arguments)
        if told is None or not 1 < told.degrees.pp <= told.world:
            continue
        ranks, count, chunks = told.degrees.pp, told.microbatches, 1
        words = [counted(count, "microbatch", "microbatches")]
        if told.schedule == "interleaved":
            stages = _cut(arguments)
            chunks, left = divmod(stages or 2 * ranks, ranks)
            if chunks < 2 or left or count % ranks:
                continue  # it asks for what no interleaved schedule has, to see it refused
            words += [f"{chunks} stages a rank{'' if stages else ', the fewest that there can be'}"]
        name = "1F1B" if chunks == 1 else "interleaved 1F1B"
        return Schedule(
            title=f"The schedule that {result.item} asks for, by its definition: {name}, {', '.join(words)}",
            stages=chunks * ranks,
            ranks=one_forward_one_backward(ranks, count, chunks),
        )
    return None


def one_forward_one_backward(ranks: int, microbatches: int, chunks: int = 1) -> tuple[tuple[Pass | None, ...], ...]:
    """1F1B (arXiv 2104.04473), interleaved if a rank has several chunks, which are stages; then the microbatches are a
    multiple of the ranks. A rank begins with forward passes: one for each rank after it, and interleaved two for each,
    beside those of `ranks` microbatches through all its chunks but the last. Then it takes one of each in turn, and at
    the end the backward passes that are left. As many microbatches as there are ranks go through a chunk before the
    next chunk. Every pass is drawn as long as any other."""
    passes = [
        (n // ranks % chunks, n // (ranks * chunks) * ranks + n % ranks) if chunks > 1 else (0, n)
        for n in range(chunks * microbatches)
    ]
    left: list[list[Pass]] = []
    for rank in range(ranks):
        behind = ranks - 1 - rank
        warm = min(behind if chunks == 1 else 2 * behind + (chunks - 1) * ranks, len(passes))
        forward = [Pass(kind="F", microbatch=n, stage=chunk * ranks + rank) for chunk, n in passes]
        back = [Pass(kind="B", microbatch=n, stage=(chunks - 1 - chunk) * ranks + rank) for chunk, n in passes]
        turns = [each for pair in zip(forward[warm:], back, strict=False) for each in pair]
        left.append([*forward[:warm], *turns, *back[len(passes) - warm :]])
    done: set[Pass] = set()
    drawn: list[list[Pass | None]] = [[] for _ in range(ranks)]
    while any(left):
        ready = [bool(turns) and _before(turns[0], chunks * ranks) <= done for turns in left]
        for rank in range(ranks):
            drawn[rank].append(left[rank].pop(0) if ready[rank] else None)
        done.update(each[-1] for each in drawn if each[-1] is not None)
    return tuple(map(tuple, drawn))


def _before(one: Pass, stages: int) -> set[Pass]:
    """What must be done before a pass."""
    if one.kind == "F":
        return {replace(one, stage=one.stage - 1)} if one.stage else set()
    return {replace(one, kind="F")} | ({replace(one, stage=one.stage + 1)} if one.stage < stages - 1 else set())


def _cut(arguments: Iterable[object]) -> int | None:
    """The stages that the pattern of a case is cut into; None where it is not cut."""
    recipe = next((each for each in arguments if isinstance(each, Recipe)), None)
    return None if recipe is None or "|" not in recipe.pattern else recipe.pattern.count("|") + 1


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
