"""The mesh of a case of several ranks, with the ranks on which it went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contracts.contract import LAW
from contracts.spec.records import Item, Result
from contracts.spec.topology import Degrees, Mesh, grids
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


def _mesh(item: Item) -> Mesh | None:
    """The dense grid of a case: that of its execution, or of degrees, a world and a layout that stand by themselves."""
    contract = LAW.contracts.get(item.id)
    if contract is None or item.case not in contract.asked:
        return None
    arguments = contract.asked[item.case]
    for each in arguments:
        if isinstance(each, Execution):
            return grids(each.degrees, each.world, each.layout).dense
    degrees = next((each for each in arguments if isinstance(each, Degrees)), None)
    layout = next((each for each in arguments if each in ("own-axis", "borrowed")), None)
    if degrees is None or layout is None:
        return None
    return grids(degrees, contract.ranks(item.case), layout).dense


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
