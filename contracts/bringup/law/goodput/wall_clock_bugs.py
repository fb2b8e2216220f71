"""Clocks that count twice, mix categories, or forget open spans."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


def _lengths(spans, end):
    """Kind → the lengths of its spans, added up."""
    return {
        kind: sum((end if span.end is None else span.end) - span.start for span in spans if span.kind == kind)
        for kind in ("step", "compile", "checkpoint", "data", "eval")
    }


@broken(
    Reference,
    "goodput",
    "GOOD-01[everything-once]: the parts add up to 13000 ms, the wall clock is 10000",
    "GOOD-01b[loader-overlaps-two-steps]: the parts add up to",
)
def counts_nested_spans_twice(goodput, self, spans, start, end):
    """Sums the spans of each category, so the compilation inside the first step counts in both."""
    found = goodput(self, spans, start, end)
    return replace(found, parts={**_lengths(spans, end), "idle": found.parts["idle"]})


@broken(Reference, "goodput", "GOOD-01[three-deep]: step took 8000 ms, expected 5000")
def outermost_wins(goodput, self, spans, start, end):
    """Over-correction: drops spans inside other spans, so nothing counts twice and half is not seen."""
    outer = tuple(
        span for span in spans
        if not any(o is not span and o.start <= span.start and (span.end or end) <= (o.end or end) for o in spans)
    )  # fmt: skip
    return goodput(self, outer, start, end)


@broken(Reference, "goodput", "GOOD-01[waiting-for-data]: step took 2000 ms, expected 1100", bugs=("PRV-14",))
def starts_the_data_timer_after_next(goodput, self, spans, start, end):
    """Starts the data timer when the batch has arrived, so a stalled loader reads as a slow step."""
    late = tuple(replace(span, start=span.end or end) if span.kind == "data" else span for span in spans)
    return goodput(self, late, start, end)


@broken(Reference, "goodput", "GOOD-01[asynchronous-save]: step took 1000 ms, expected 4000")
def an_asynchronous_save_stops_the_clock(goodput, self, spans, start, end):
    """Treats an asynchronous save as one that every rank waits for."""
    saves = tuple(replace(span, background=False) for span in spans if span.background)
    begins = min((save.start for save in saves), default=end)
    before = tuple(replace(s, end=min(s.end or end, begins)) for s in spans if not s.background and s.start < begins)
    return goodput(self, before + saves, start, end)


@broken(Reference, "goodput", "GOOD-01[killed-while-saving]: checkpoint took 0 ms, expected 3000")
def forgets_open_spans(goodput, self, spans, start, end):
    """Drops a span without an end, so the save in which a run was killed reads as idle."""
    return goodput(self, tuple(span for span in spans if span.end is not None), start, end)


@broken(Reference, "goodput", "GOOD-01[everything-once]: (step / wall)")
def divides_by_busy_time(goodput, self, spans, start, end):
    """Divides by the measured time, so idle time, the largest loss of all, does not lower goodput."""
    found = goodput(self, spans, start, end)
    return replace(found, goodput=found.parts["step"] / max(found.wall - found.parts["idle"], 1))


@broken(Reference, "goodput", "GOOD-01a[first-step-compiles]: the steady steps are (0, 1, 2)", bugs=("PRV-25",))
def averages_over_warm_up(goodput, self, spans, start, end):
    """Counts all steps as steady, including the one that compiled."""
    found = goodput(self, spans, start, end)
    return replace(found, steady=tuple(range(found.steps)), steady_ms=found.parts["step"])


@broken(Reference, "goodput", "GOOD-01a[recompiles-in-the-middle]: the steady steps are (1, 2, 3, 4)", bugs=("PRV-25",))
def drops_the_first_step_alone(goodput, self, spans, start, end):
    """Drops a fixed number of warm-up steps, so a later recompilation or save counts as step time."""
    found = goodput(self, spans, start, end)
    return replace(found, steady=tuple(range(1, found.steps)))


@broken(Reference, "goodput", "GOOD-01a[asynchronous-save]: the steady steps are ()")
def a_save_in_the_background_disturbs(goodput, self, spans, start, end):
    """Over-correction: a step during an asynchronous save is not steady, and with frequent saves no step is."""
    found = goodput(self, spans, start, end)
    return replace(found, steady=(), steady_ms=0) if any(span.background for span in spans) else found


@broken(Reference, "goodput", "GOOD-01b[save-runs-into-the-next-step]: idle is")
def takes_overlaps_from_idle(goodput, self, spans, start, end):
    """Over-correction: every span keeps its length and idle is the remainder, so the sum is always right."""
    found, lengths = goodput(self, spans, start, end), _lengths(spans, end)
    return replace(found, parts={**lengths, "idle": found.wall - sum(lengths.values())})


@broken(Reference, "goodput", "GOOD-01c[ends-after-the-clock]: was accepted, expected a refusal")
def clips_in_silence(goodput, self, spans, start, end):
    """Silently clips what lies outside the wall clock: the sum is right, but two clocks were mixed."""
    inside = tuple(
        replace(span, start=max(span.start, start), end=None if span.end is None else min(span.end, end))
        for span in spans
    )
    return goodput(self, inside, start, end)
