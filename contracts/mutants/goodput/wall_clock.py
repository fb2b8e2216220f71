"""Clocks that count twice, mix categories, or forget open spans."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.goodput import Goodput, Span
from contracts.stacks.reference.stack import Reference


def _lengths(spans: tuple[Span, ...], end: int) -> dict[str, int]:
    """Kind → the lengths of its spans, added up."""
    return {
        kind: sum((end if span.end is None else span.end) - span.start for span in spans if span.kind == kind)
        for kind in ("step", "compile", "checkpoint", "data", "eval")
    }


@mutant(of="GOOD-01", case="everything-once", says="the parts add up to 13000 ms, the wall clock is 10000")
class CountsNestedSpansTwice(Reference):
    """Sums the spans of each category, so the compilation inside the first step counts in both."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        found = super().goodput(spans, start, end)
        return replace(found, parts={**_lengths(spans, end), "idle": found.parts["idle"]})


@mutant(of="GOOD-01", case="three-deep", says="step took 8000 ms, expected 5000")
class OutermostWins(Reference):
    """Over-correction: drops spans inside other spans, so nothing counts twice and half is not seen."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        outer = tuple(
            span for span in spans
            if not any(o is not span and o.start <= span.start and (span.end or end) <= (o.end or end) for o in spans)
        )  # fmt: skip
        return super().goodput(outer, start, end)


@mutant(of="GOOD-01", case="waiting-for-data", says="step took 2000 ms, expected 1100", bugs=("PRV-14",))
class StartsTheDataTimerAfterNext(Reference):
    """Starts the data timer when the batch has arrived, so a stalled loader reads as a slow step."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        late = tuple(replace(span, start=span.end or end) if span.kind == "data" else span for span in spans)
        return super().goodput(late, start, end)


@mutant(of="GOOD-01", case="asynchronous-save", says="step took 1000 ms, expected 4000")
class AnAsynchronousSaveStopsTheClock(Reference):
    """Treats an asynchronous save as one that every rank waits for."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        saves = tuple(replace(span, background=False) for span in spans if span.background)
        begins = min((save.start for save in saves), default=end)
        before = tuple(
            replace(s, end=min(s.end or end, begins)) for s in spans if not s.background and s.start < begins
        )
        return super().goodput(before + saves, start, end)


@mutant(of="GOOD-01", case="killed-while-saving", says="checkpoint took 0 ms, expected 3000")
class ForgetsOpenSpans(Reference):
    """Drops a span without an end, so the save in which a run was killed reads as idle."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        return super().goodput(tuple(span for span in spans if span.end is not None), start, end)


@mutant(of="GOOD-01", case="everything-once", says="(step / wall)")
class DividesByBusyTime(Reference):
    """Divides by the measured time, so idle time, the largest loss of all, does not lower goodput."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        found = super().goodput(spans, start, end)
        return replace(found, goodput=found.parts["step"] / max(found.wall - found.parts["idle"], 1))


@mutant(of="GOOD-01a", case="first-step-compiles", says="the steady steps are (0, 1, 2)", bugs=("PRV-25",))
class AveragesOverWarmUp(Reference):
    """Counts all steps as steady, including the one that compiled."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        found = super().goodput(spans, start, end)
        return replace(found, steady=tuple(range(found.steps)), steady_ms=found.parts["step"])


@mutant(of="GOOD-01a", case="recompiles-in-the-middle", says="the steady steps are (1, 2, 3, 4)", bugs=("PRV-25",))
class DropsTheFirstStepAlone(Reference):
    """Drops a fixed number of warm-up steps, so a later recompilation or save counts as step time."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        found = super().goodput(spans, start, end)
        return replace(found, steady=tuple(range(1, found.steps)))


@mutant(of="GOOD-01a", case="asynchronous-save", says="the steady steps are ()")
class ASaveInTheBackgroundDisturbs(Reference):
    """Over-correction: a step during an asynchronous save is not steady, and with frequent saves no step is."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        found = super().goodput(spans, start, end)
        return replace(found, steady=(), steady_ms=0) if any(span.background for span in spans) else found


@mutant(of="GOOD-01b", case="loader-overlaps-two-steps", says="the parts add up to")
class AddsOverlapsUp(Reference):
    """Counts an overlap in both of the spans."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        found = super().goodput(spans, start, end)
        return replace(found, parts={**_lengths(spans, end), "idle": found.parts["idle"]})


@mutant(of="GOOD-01b", case="save-runs-into-the-next-step", says="idle is")
class TakesOverlapsFromIdle(Reference):
    """Over-correction: every span keeps its length and idle is the remainder, so the sum is always right."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        found, lengths = super().goodput(spans, start, end), _lengths(spans, end)
        return replace(found, parts={**lengths, "idle": found.wall - sum(lengths.values())})


@mutant(of="GOOD-01c", case="ends-after-the-clock", says="was accepted, expected a refusal")
class ClipsInSilence(Reference):
    """Silently clips what lies outside the wall clock: the sum is right, but two clocks were mixed."""

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        inside = tuple(
            replace(span, start=max(span.start, start), end=None if span.end is None else min(span.end, end))
            for span in spans
        )
        return super().goodput(inside, start, end)
