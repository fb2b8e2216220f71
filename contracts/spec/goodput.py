"""Goodput: the wall clock divided into parts that add up to it, and the time of undisturbed steps.

Spans are whole milliseconds of one timeline, so the parts add up exactly. Every instant belongs to one owner:

1. idle, when no span covers it;
2. the innermost of nested spans: a compilation inside a step is compilation;
3. of two spans that overlap without nesting, the one that began first; the other begins when that one ends;
4. a background span (an asynchronous save) only where no other span covers the instant, because it delays nobody.
"""

import bisect
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from contracts.spec.errors import Refusals

SpanKind = Literal["step", "compile", "checkpoint", "data", "eval"]
KINDS: tuple[SpanKind, ...] = ("step", "compile", "checkpoint", "data", "eval")
PARTS: tuple[str, ...] = (*KINDS, "idle")


@dataclass(frozen=True, kw_only=True)
class Span:
    """One interval of the timeline, in ms. `end` None: still open when the clock stopped, as after a kill."""

    kind: SpanKind
    start: int
    end: int | None
    background: bool = False


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The parts of a wall clock in ms (step, compile, checkpoint, data, eval, idle); they add up to `wall`.

    `goodput` is step / wall. `steady` lists the closed steps (numbered from 0, by start) that no compilation, save or
    evaluation interrupted. `steady_ms` is the sum of their step times, without waits for data.
    """

    wall: int
    parts: Mapping[str, int]
    goodput: float
    steps: int
    steady: tuple[int, ...]
    steady_ms: int


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """An interval with its owner: an index into the spans, or None for idle."""

    start: int
    end: int
    owner: int | None


def goodput(spans: Sequence[Span], start: int, end: int) -> Goodput:
    """The wall clock from `start` to `end` in parts.

    Raises:
        Refused: for a clock or a span that ends before it starts, and for a span outside the clock.
    """
    _legal(spans, start, end)
    extents = [(span.start, end if span.end is None else span.end) for span in spans]
    pieces = _pieces(spans, extents, start, end)
    parts = dict.fromkeys(PARTS, 0)
    owned = [0] * len(spans)
    for piece in pieces:
        took = piece.end - piece.start
        parts["idle" if piece.owner is None else spans[piece.owner].kind] += took
        if piece.owner is not None:
            owned[piece.owner] += took
    steps = sorted((i for i, span in enumerate(spans) if span.kind == "step"), key=extents.__getitem__)
    disturbed = _disturbed(spans, pieces)
    steady = [
        place for place, i in enumerate(steps) if spans[i].end is not None and not _touches(extents[i], disturbed)
    ]
    return Goodput(
        wall=end - start,
        parts=parts,
        goodput=parts["step"] / (end - start),
        steps=len(steps),
        steady=tuple(steady),
        steady_ms=sum(owned[steps[place]] for place in steady),
    )


def _pieces(spans: Sequence[Span], extents: Sequence[tuple[int, int]], start: int, end: int) -> list[_Piece]:
    front = [index for index, span in enumerate(spans) if not span.background]
    back = [index for index, span in enumerate(spans) if span.background]
    found = []
    for piece in _owned(front, extents, start, end):
        if piece.owner is not None or not back:
            found.append(piece)
            continue
        clipped = {i: (max(extents[i][0], piece.start), min(extents[i][1], piece.end)) for i in back}
        inside = [i for i, (begins, ends) in clipped.items() if begins < ends]
        found += _owned(inside, clipped, piece.start, piece.end)
    return found


def _disturbed(spans: Sequence[Span], pieces: Iterable[_Piece]) -> list[tuple[int, int]]:
    """The instants at which compilation, a save or an evaluation interrupted the steps. Waiting for data counts as part
    of a step.
    """
    no_part = ("compile", "checkpoint", "eval")
    return [
        (piece.start, piece.end)
        for piece in pieces
        if piece.owner is not None and spans[piece.owner].kind in no_part and not spans[piece.owner].background
    ]


def _touches(extent: tuple[int, int], disturbed: Sequence[tuple[int, int]]) -> bool:
    place = bisect.bisect_right(disturbed, extent[0], key=lambda piece: piece[1])  # the first that ends later
    return place < len(disturbed) and disturbed[place][0] < extent[1]


def _owned(
    chosen: Iterable[int], extents: Mapping[int, tuple[int, int]] | Sequence[tuple[int, int]], start: int, end: int
) -> Iterable[_Piece]:
    """Cut [start, end) into pieces with one owner each, by rules 1 to 3."""
    waiting = [(extents[i][0], -extents[i][1], i) for i in chosen]
    heapq.heapify(waiting)
    stack: list[tuple[int, int]] = []  # (end, owner), innermost last
    now = start

    def until(moment: int) -> Iterable[_Piece]:
        """The pieces from `now` to `moment`: the innermost span, then the span around it, then idle."""
        nonlocal now
        while stack and stack[-1][0] <= moment:
            ending, owner = stack.pop()
            if now < ending:
                yield _Piece(start=now, end=ending, owner=owner)
                now = ending
        if now < moment:
            yield _Piece(start=now, end=moment, owner=stack[-1][1] if stack else None)
            now = moment

    while waiting:
        begins, minus_end, owner = heapq.heappop(waiting)
        yield from until(begins)
        if stack and stack[-1][0] < -minus_end:  # overlaps what began first without being inside it
            heapq.heappush(waiting, (stack[-1][0], minus_end, owner))
        elif begins < -minus_end:
            stack.append((-minus_end, owner))
    yield from until(end)


def _legal(spans: Sequence[Span], start: int, end: int) -> None:
    found = Refusals()
    found.unless(start < end, "end", end, f"must be after start ({start})", "give the clock of the whole job")
    for place, span in enumerate(spans):
        name = f"spans[{place}]"
        if span.end is not None and span.end < span.start:
            found.add(f"{name}.end", span.end, f"is before its start ({span.start})", "use one monotonic clock")
        if span.start < start or span.start > end or (span.end is not None and span.end > end):
            extent = f"{span.kind} {span.start} … {span.end}"
            found.add(name, extent, f"leaves the clock ({start} … {end})", "measure both by one clock")
    found.raise_any()
