"""A trace seen as one run: what the ranks wrote of each tensor, put together."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.observe.trace import Line, RankTrace, Trace


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A tensor of a step, over all ranks.

    Args:
        shape: of the whole tensor; of an output without its batch.
        dtypes: in which ranks hold it.
        squares: the sum of its squared elements; a name such as "nan" where that is not finite.
        places: the sketches of its parts, by rank and number; None where a part has none.
        unlike: pairs of ranks that should hold the same bits and do not.
        kept: where the values of its parts lie; None where a part has none.
    """

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    squares: float
    places: tuple[tuple[RankTrace, int], ...] | None
    unlike: tuple[tuple[int, int], ...] = ()
    kept: tuple[tuple[RankTrace, tuple[int, ...]], ...] | None = None

    @property
    def norm(self) -> float:
        return float(self.squares**0.5)

    @functools.cached_property
    def sketch(self) -> Any:
        """The sketch of the whole, a torch tensor [1024]; None where a part has none."""
        if not self.places:
            return None
        (rank, number), *rest = self.places
        total = rank.sketch(number)
        for rank, number in rest:
            total += rank.sketch(number)
        return total

    @functools.cached_property
    def values(self) -> Any:
        """The whole tensor; None where a part of it was not kept."""
        import torch

        total: Any = None
        for rank, place in self.kept or ():
            held = rank.values(place)
            local = held["local"].reshape(-1)
            total = torch.zeros(self.shape, dtype=local.dtype) if total is None else total
            for start, indices in held["pieces"]:
                put(total, indices, local[start:])
        return total


def put(total: Any, indices: Sequence[Any], values: Any) -> None:
    """Add `values`, a flat tensor of at least so many, to `total` at the product of indices; -1 is padding."""
    inside, shape = [each >= 0 for each in indices], [len(each) for each in indices]
    mine = values[: math.prod(shape)].reshape(shape)
    for axis, each in enumerate(inside):
        mine = mine.index_select(axis, each.nonzero().reshape(-1))
    total[grid([each[keep] for each, keep in zip(indices, inside, strict=True)])] += mine


def grid(indices: Sequence[Any]) -> tuple[Any, ...]:
    """Indices that select the product of `indices`, one of each axis."""
    axes = range(len(indices))
    return tuple(each.view([-1 if at == axis else 1 for at in axes]) for axis, each in enumerate(indices))


class Merged:
    """The steps of a trace. Steps count from 1; `weight` at step s is before it, `updated` behind it.

    Args:
        behind: how many steps are left out: step 1 is the one that follows them, as a run that resumes there sees it.
    """

    def __init__(self, trace: Trace, behind: int = 0) -> None:
        self.trace = trace
        self.steps = max(0, min((each.end or {}).get("steps", _last(each)) for each in trace.ranks) - behind)
        self._lines: dict[tuple[str, int], list[tuple[RankTrace, Line]]] = {}
        for rank in trace.ranks:
            for line in rank.lines:
                kind, step = line["e"], line.get("step", 0) - (behind if "step" in line else 0)
                if behind and (kind, step) == ("weight", 1):
                    continue
                if behind and (kind, step) == ("updated", 0):  # has a sketch, which only a first `weight` has
                    kind, step = "weight", 1
                if step > 0 or "step" not in line:
                    self._lines.setdefault((kind, step), []).append((rank, line))

    def lines(self, kind: str, step: int = 0) -> list[tuple[RankTrace, Line]]:
        """The lines of a kind in a step, with their ranks; step 0 has what belongs to none."""
        return self._lines.get((kind, step), [])

    @functools.cached_property
    def data_ranks(self) -> tuple[int, ...]:
        """The ranks that share a batch between them, where DDP or FSDP2 said so."""
        return next((tuple(line["data"]) for _, line in self.lines("root") if line["data"]), ())

    def tensors(self, kind: str, step: int) -> Mapping[str, Whole]:
        """The weights, gradients, updated weights or moments of a step that could be placed, by name."""
        by_name: dict[str, list[tuple[RankTrace, Line]]] = {}
        for rank, line in self.lines(kind, step):
            if line.get("placed", True):
                label = f"{line['name']} {line['moment']}" if kind == "moment" else line["name"]
                by_name.setdefault(label, []).append((rank, line))
        return {name: _whole(name, found) for name, found in by_name.items()}

    def rows(self, step: int) -> Counter[int]:
        """How often each row of a batch is consumed in a step. Ranks of one replica count once."""
        return Counter(row for _, line in self._apart("input", step) for row in line["rows"])

    def outputs(self, step: int) -> Mapping[str, Whole]:
        """The outputs of the modules in a step, in the order of computation, over all rows of its batch.

        An output without a batch is here where all calls agree to the bit.
        """
        kept = {(rank.rank, line["microbatch"]) for rank, line in self._apart("input", step)}
        by_name: dict[str, list[tuple[RankTrace, Line]]] = {}
        for rank, line in self.lines("forward", step):
            if (rank.rank, line["microbatch"]) in kept and line.get("placed", True):
                name = line["name"] if line["call"] == 1 else f"{line['name']} (call {line['call']})"
                by_name.setdefault(name, []).append((rank, line))
        found = {}
        for name, lines in by_name.items():
            first = lines[0][1]
            if all(line["batched"] for _, line in lines):
                shape, used = tuple(first["shape"][1:]), lines
            elif len({line["bits"] for _, line in lines}) == 1:
                shape, used = tuple(first["shape"]), lines[:1]
            else:
                continue
            found[name] = Whole(
                name=name, shape=shape, dtypes=_dtypes(lines), places=_places(used),
                squares=sum(float(line["squares"]) for _, line in used),
            )  # fmt: skip
        return found

    def routed(self, step: int) -> Mapping[str, tuple[int, ...]]:
        """The assignments of each router in a step, by expert, over all rows of its batch."""
        kept = {(rank.rank, line["microbatch"]) for rank, line in self._apart("input", step)}
        found: dict[str, tuple[int, ...]] = {}
        for rank, line in self.lines("routed", step):
            if (rank.rank, line["microbatch"]) in kept:
                pairs = itertools.zip_longest(found.get(line["name"], ()), line["counts"], fillvalue=0)
                found[line["name"]] = tuple(one + other for one, other in pairs)
        return found

    def loss(self, step: int) -> float | None:
        """The mean over ranks of what each one's backward passes began with; None where no number was seen."""
        of: dict[int, float] = {}
        for rank, line in self.lines("loss", step):
            of[rank.rank] = of.get(rank.rank, 0.0) + float(line["value"])
        return sum(of.values()) / len(of) if of else None

    def _apart(self, kind: str, step: int) -> Iterator[tuple[RankTrace, Line]]:
        """The lines of a step by microbatch, without those of ranks that compute the same rows as an earlier one."""
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for rank, line in self.lines(kind, step):
            key = (line["microbatch"], tuple(line["rows"]))
            if rank.rank in self.data_ranks or key not in seen:
                yield rank, line
            seen.add(key)


def _last(rank: RankTrace) -> int:
    return max((line["step"] for line in rank.of("step")), default=0)


def _whole(name: str, found: list[tuple[RankTrace, Line]]) -> Whole:
    parts: dict[str, dict[int, tuple[RankTrace, Line]]] = {}
    for rank, line in found:
        parts.setdefault(line["part"], {})[rank.rank] = rank, line  # what a rank wrote last stands
    unlike, firsts = [], []
    for holders in (list(each.values()) for each in parts.values()):
        rank, line = holders[0]
        if not line["partial"]:
            unlike += [(rank.rank, other.rank) for other, its in holders if its["bits"] != line["bits"]]
        firsts.append(next((each for each in holders if each[1]["sketch"] is not None), holders[0]))
    kept = [(rank, tuple(line["values"])) for rank, line in firsts if line.get("values")]
    return Whole(
        name=name, shape=tuple(found[0][1]["shape"]), dtypes=_dtypes(found), places=_places(firsts),
        kept=tuple(kept) if len(kept) == len(firsts) else None,
        squares=sum(float(line["squares"]) for _, line in firsts), unlike=tuple(unlike),
    )  # fmt: skip


def _places(lines: list[tuple[RankTrace, Line]]) -> tuple[tuple[RankTrace, int], ...] | None:
    if any(line["sketch"] is None for _, line in lines):
        return None
    return tuple((rank, line["sketch"]) for rank, line in lines)


def _dtypes(lines: list[tuple[RankTrace, Line]]) -> tuple[str, ...]:
    return tuple(sorted({line["dtype"] for _, line in lines}))
