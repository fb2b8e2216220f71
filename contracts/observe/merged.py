"""A trace seen as one run: what the ranks wrote of each tensor, put together."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        every: by part and rank, what was written of it; empty if no ranks are unlike.
        holders: the ranks that hold it, with their lines, if it has no parts.
        replicas: how many pairs of ranks should hold the same bits.
        kept: where the values of its parts lie; None where a part has none.
        summed: an output that several ranks computed of the same rows, and not to the same numbers, is here the sum of
            theirs: each may have had a part of a sum, as after a matrix that tensor parallelism cuts by rows.
    """

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    squares: float
    places: tuple[tuple[RankTrace, int], ...] | None
    unlike: tuple[tuple[int, int], ...] = ()
    replicas: int = 0
    every: Mapping[tuple[str, int], tuple[RankTrace, Line]] = field(default_factory=dict)
    holders: tuple[tuple[RankTrace, Line], ...] = ()
    kept: tuple[tuple[RankTrace, tuple[int, ...]], ...] | None = None
    summed: Whole | None = None
    batched: bool = False

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


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A clipping of gradients: the norm that it read, over all ranks that hold parts of them, and its limit.

    Args:
        names: those of the parameters, each as often as it was given.
        given: whether the norm was given, and may be of more gradients.
        after: how many backward passes of the step were over; 0 if nobody knows.
    """

    names: tuple[str, ...]
    norm: float
    most: float
    given: bool
    after: int

    @property
    def factor(self) -> float:
        return min(1.0, self.most / (self.norm + 1e-6))


def last(clips: Sequence[Clip]) -> list[Clip]:
    """Those that no other one of the same gradients follows: a scaler skips a step that was clipped, and what is
    clipped twice has the second norm."""
    found: list[Clip] = []
    later: set[str] = set()
    for each in reversed(clips):
        found += [each] * later.isdisjoint(each.names)
        later.update(each.names)
    return found


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
    """The steps of a trace. Steps count from 1; `weight` at step s is before it, `updated` after it.

    Args:
        behind: how many steps are left out: step 1 is the one that follows them, as a run that resumes there sees it.
    """

    def __init__(self, trace: Trace, behind: int = 0) -> None:
        self.trace, self.behind = trace, behind
        self.steps = max(0, min((each.end or {}).get("steps", _last(each)) for each in trace.ranks) - behind)
        self._lines: dict[tuple[str, int], list[tuple[RankTrace, Line]]] = {}
        for rank in trace.ranks:
            for line in _kept(rank.lines):
                kind, step = line["e"], line.get("step", 0) - (behind if "step" in line else 0)
                if behind and (kind, step) == ("weight", 1):
                    continue
                if behind and (kind, step) == ("updated", 0):  # has a sketch, which only a first `weight` has
                    kind, step = "weight", 1
                if step > 0 or "step" not in line or (kind == "drawn-rows" and not behind):
                    self._lines.setdefault((kind, step), []).append((rank, line))

    def lines(self, kind: str, step: int = 0) -> list[tuple[RankTrace, Line]]:
        """The lines of a kind in a step, with their ranks; step 0 has what belongs to none."""
        return self._lines.get((kind, step), [])

    @functools.cached_property
    def data_ranks(self) -> tuple[int, ...]:
        """The ranks that share a batch between them, where DDP or FSDP2 said so."""
        return next((tuple(line["data"]) for _, line in self.lines("root") if line["data"]), ())

    @functools.cached_property
    def staged(self) -> bool:
        """Whether ranks are stages of a pipeline."""
        return any(line.get("later") for _, line in self.lines("root")) or any(
            line.get("received") for rank in self.trace.ranks for line in rank.of("drawn"))  # fmt: skip

    @functools.cached_property
    def _strangers(self) -> Mapping[int, str]:
        """The ranks of a pipeline that number their layers for themselves, by what tells their names apart: most of
        their weights begin otherwise than those of the first rank that has such names. Copies begin equal."""
        found: dict[int, str] = {}
        first: dict[tuple[str, str], str] = {}
        for rank in self.trace.ranks if self.staged else ():
            bits = {(line["name"], line["part"]): line["bits"] for line in rank.of("weight")
                    if line["step"] == 1 and line.get("placed", True)}  # fmt: skip
            shared = [name for name in bits if name in first]
            if 2 * sum(bits[name] != first[name] for name in shared) > len(shared):
                digest = hashlib.sha256("".join(sorted(bits.values())).encode()).hexdigest()[:8]
                found[rank.rank] = f"stage {digest}: "
            for name, each in bits.items():
                first.setdefault(name, each)
        return found

    def tensors(self, kind: str, step: int) -> Mapping[str, Whole]:
        """The weights, gradients, updated weights or moments of a step that could be placed, by name."""
        by_name: dict[str, list[tuple[RankTrace, Line]]] = {}
        for rank, line in self.lines(kind, step):
            if line.get("placed", True):
                label = f"{line['name']} {line['moment']}" if kind == "moment" else line["name"]
                label = self._strangers.get(rank.rank, "") + label
                by_name.setdefault(label, []).append((rank, line))
        return {name: _whole(name, found) for name, found in by_name.items()}

    def clips(self, step: int) -> Mapping[int, list[Clip]]:
        """By rank, the clippings of a step, in their order."""
        of: dict[int, list[Line]] = {}
        for rank, line in self.lines("clip", step):
            of.setdefault(rank.rank, []).append(line)

        def norm(at: int, line: Line) -> float:
            whole = [line] if not line["partial"] else [
                each[at] for each in of.values() if len(each) > at and each[at].get("first", True)]  # fmt: skip
            return math.hypot(*(float(each["norm"]) for each in whole))

        return {
            number: [
                Clip(names=tuple(sorted(line["names"])), norm=norm(at, line), most=float(line["max"]),
                     given=bool(line.get("given")), after=int(line.get("backward", 0)))
                for at, line in enumerate(mine)
            ] for number, mine in of.items()
        }  # fmt: skip

    def rows(self, step: int, *, ids: bool = False) -> Counter[int]:
        """How often each row of a batch is consumed in a step, by its ids only where a pipeline is compared, of which
        each stage is given something else. Ranks of one replica count once."""
        consumed = [line for _, line in self.inputs(step) if line["rows"]]
        return Counter(row for line in consumed for row in (_ids(line) if ids else line["rows"]))

    def outputs(self, step: int) -> Mapping[str, Whole]:
        """The outputs of the modules in a step, in the order of computation, over all rows of its batch.

        An output without a batch is here where all calls agree to the bit. That of the root is not of a pipeline's.
        """
        named = [(f"{line['name']} (call {line['call']})" if line["call"] > 1 else line["name"], rank, line)
                 for rank, line in self.lines("forward", step)
                 if line.get("placed", True) and rank.rank not in self._strangers
                 and not (self.staged and line["name"] == "(root)")]  # fmt: skip
        found = {}
        for name, (lines, copies) in self._of_rows(step, named).items():
            batch = int(all(line["batched"] for _, line in lines))
            if batch or len({line["bits"] for _, line in lines}) == 1:
                used = lines if batch else lines[:1]
                summed = _output(name, [*used, *copies], batch) if copies else None
                found[name] = replace(_output(name, used, batch), summed=summed)
        return found

    def routed(self, step: int) -> Mapping[str, tuple[int, ...]]:
        """The assignments of each router in a step, by expert, over all rows of its batch."""
        found: dict[str, tuple[int, ...]] = {}
        named = [(line["name"], rank, line) for rank, line in self.lines("routed", step)]
        for name, (lines, _) in self._of_rows(step, named).items():
            counts = itertools.zip_longest(*(line["counts"] for _, line in lines), fillvalue=0)
            found[name] = tuple(map(sum, counts))
        return found

    def _of_rows(
        self, step: int, named: Iterable[tuple[str, RankTrace, Line]]
    ) -> Mapping[str, tuple[list[tuple[RankTrace, Line]], list[tuple[RankTrace, Line]]]]:
        """By name: the lines that are of each row once, and, of other numbers, those of ranks that computed the same
        rows."""
        inputs = {(rank.rank, line["microbatch"]): _consumed(line) for rank, line in self.lines("input", step)}
        found: dict[str, tuple[list[tuple[RankTrace, Line]], list[tuple[RankTrace, Line]]]] = {}
        seen: set[tuple[str, Any, Any]] = set()
        for name, rank, line in named:
            key = inputs.get((rank.rank, line["microbatch"]))
            if key is None:
                continue
            lines, copies = found.setdefault(name, ([], []))
            if rank.rank in self.data_ranks or (name, key, None) not in seen:
                lines.append((rank, line))
            elif (name, key, line.get("squares")) not in seen:
                copies.append((rank, line))
            seen |= {(name, key, None), (name, key, line.get("squares"))}
        return found

    def loss(self, step: int) -> float | None:
        """The mean over ranks of what each one's backward passes began with; None where no number was seen."""
        of: dict[int, float] = {}
        for rank, line in self.lines("loss", step):
            of[rank.rank] = of.get(rank.rank, 0.0) + float(line["value"])
        return sum(of.values()) / len(of) if of else None

    def sharers(self, step: int) -> int:
        """How many ranks a loss may be the sum of: those that consume other rows, but where DDP takes a mean."""
        if any(line["replicas"] for _, line in self.lines("root")):
            return 1
        return max(1, len(self.data_ranks) or len({rank.rank for rank, line in self.inputs(step) if line["rows"]}))

    def inputs(self, step: int) -> Iterator[tuple[RankTrace, Line]]:
        """The inputs of a step by microbatch, without those of ranks that compute the same rows as an earlier one."""
        seen = set()
        for rank, line in self.lines("input", step):
            if rank.rank in self.data_ranks or _consumed(line) not in seen:
                yield rank, line
            seen.add(_consumed(line))


_OF_A_PASS = frozenset(
    {"input", "forward", "drawn", "loss", "labels", "routed", "handed", "told-dropped", "statistics", "clip", "told"}
)


def _kept(lines: Sequence[Line]) -> Iterator[Line]:
    """Lines without those of passes whose gradients were dropped before an optimizer stepped, or that were evaluations:
    those are of no step. Of a step whose modes were written again, the last count. A pass that received its stream has
    no rows."""
    last = {line["step"]: at for at, line in enumerate(lines) if line["e"] == "dropped"}
    modes = {line["step"]: at for at, line in enumerate(lines) if line["e"] == "modes"}
    before = {**dict.fromkeys(_OF_A_PASS, last),
              "modes": {step: at for step, at in last.items() if modes.get(step, -1) > at}}  # fmt: skip
    received = {(line["step"], line["microbatch"]) for line in lines if line["e"] == "drawn" and line.get("received")}
    return (line if line["e"] != "input" or (line["step"], line["microbatch"]) not in received else line | _ROWLESS
            for at, line in enumerate(lines)
            if line["e"] not in before or at > before[line["e"]].get(line["step"], -1))  # fmt: skip


_ROWLESS: Line = {"rows": [], "ids": [], "halves": []}


def _consumed(line: Line) -> tuple[Any, ...]:
    """What distinguishes an input from others in its step. A stage after the first one knows ids at most."""
    return line["microbatch"], tuple(_ids(line))


def _ids(line: Line) -> list[int]:
    ids: list[int] = line["ids"] if "ids" in line else line["rows"]
    return ids


def _output(name: str, lines: list[tuple[RankTrace, Line]], batch: int) -> Whole:
    return Whole(
        name=name, shape=tuple(lines[0][1]["shape"][batch:]), dtypes=_dtypes(lines), places=_places(lines),
        squares=sum(float(line["squares"]) for _, line in lines), batched=bool(batch),
    )  # fmt: skip


def _last(rank: RankTrace) -> int:
    return max((line["step"] for line in rank.of("step")), default=0)


def _whole(name: str, found: list[tuple[RankTrace, Line]]) -> Whole:
    parts: dict[str, dict[int, tuple[RankTrace, Line]]] = {}
    for rank, line in found:
        parts.setdefault(line["part"], {})[rank.rank] = rank, line  # what a rank wrote last stands
    unlike, firsts, replicas = [], [], 0
    for holders in (list(each.values()) for each in parts.values()):
        rank, line = holders[0]
        if not line["partial"]:
            replicas += len(holders) - 1
            unlike += [(rank.rank, other.rank) for other, its in holders if its["bits"] != line["bits"]]
        firsts.append(next((each for each in holders if each[1]["sketch"] is not None), holders[0]))
    kept = [(rank, tuple(line["values"])) for rank, line in firsts if line.get("values")]
    return Whole(
        name=name, shape=tuple(found[0][1]["shape"]), dtypes=_dtypes(found), places=_places(firsts),
        kept=tuple(kept) if len(kept) == len(firsts) else None,
        squares=sum(float(line["squares"]) for _, line in firsts), unlike=tuple(unlike),
        every={(line["part"], rank.rank): (rank, line) for rank, line in found} if unlike else {},
        replicas=replicas, holders=tuple(found) if parts.keys() == {""} else (),
    )  # fmt: skip


def _places(lines: list[tuple[RankTrace, Line]]) -> tuple[tuple[RankTrace, int], ...] | None:
    if any(line["sketch"] is None for _, line in lines):
        return None
    return tuple((rank, line["sketch"]) for rank, line in lines)


def _dtypes(lines: list[tuple[RankTrace, Line]]) -> tuple[str, ...]:
    return tuple(sorted({line["dtype"] for _, line in lines}))
