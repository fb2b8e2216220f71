"""Goodput: a wall clock in parts that add up, and step times that include nothing else. All times in ms."""

from collections.abc import Mapping

from contracts.contract import contract
from contracts.law._support.answers import refusal_of
from contracts.spec.goodput import Goodput, Span, SpanKind
from contracts.spec.lifecycle import Lifecycle

PARTS = ("step", "compile", "checkpoint", "data", "eval", "idle")


def _span(kind: SpanKind, start: int, end: int | None, background: bool = False) -> Span:
    return Span(kind=kind, start=start, end=end, background=background)


# A run with every kind of span: the first step compiles, and there is a pause before the third.
WHOLE = (
    _span("step", 0, 4000), _span("compile", 500, 3500), _span("step", 4000, 5000), _span("step", 6000, 7000),
    _span("checkpoint", 7000, 9000), _span("eval", 9000, 9500), _span("data", 9500, 9800),
)  # fmt: skip
ASYNC = (  # the save goes on through the second step and 2 s past it
    _span("step", 0, 2000), _span("checkpoint", 1000, 6000, background=True), _span("step", 2000, 4000),
)  # fmt: skip
WAITS = (  # each step begins by waiting for its batch; the second waits long
    _span("step", 0, 1000), _span("data", 0, 200), _span("step", 1000, 2000), _span("data", 1000, 1700),
)  # fmt: skip

Parts = Mapping[str, int]
CLOCKS: dict[str, tuple[tuple[Span, ...], int, int, Parts]] = {  # spans, clock, parts that are not 0
    # step 4000 − 3000 + 1000 + 1000; idle 5000 … 6000 and 9800 … 10 000
    "everything-once": (
        WHOLE, 0, 10_000,
        {"step": 3000, "compile": 3000, "checkpoint": 2000, "eval": 500, "data": 300, "idle": 1200},
    ),
    "in-any-order": (
        WHOLE[::-1], 0, 10_000,
        {"step": 3000, "compile": 3000, "checkpoint": 2000, "eval": 500, "data": 300, "idle": 1200},
    ),
    # data inside a save inside a step, by a clock that does not begin at 0: 8000 − 3000, 3000 − 500, 500
    "three-deep": (
        (_span("step", 1000, 9000), _span("checkpoint", 3000, 6000), _span("data", 4000, 4500)), 500, 9500,
        {"step": 5000, "checkpoint": 2500, "data": 500, "idle": 1000},
    ),
    "two-compilations-in-one-step": (
        (_span("step", 0, 900), _span("compile", 100, 300), _span("compile", 300, 350), _span("step", 900, 1000)),
        0, 1000, {"step": 750, "compile": 250},
    ),
    "killed-while-saving": (
        (_span("step", 0, 1000), _span("checkpoint", 1000, None)), 0, 4000, {"step": 1000, "checkpoint": 3000},
    ),
    "asynchronous-save": (ASYNC, 0, 7000, {"step": 4000, "checkpoint": 2000, "idle": 1000}),
    "waiting-for-data": (WAITS, 0, 2000, {"step": 1100, "data": 900}),
    "never-stepped": ((_span("compile", 100, 7300),), 0, 7500, {"compile": 7200, "idle": 300}),
    "nothing-recorded": ((), 40, 90, {"idle": 50}),
}  # fmt: skip


@contract("GOOD-01", asks="goodput", cases=CLOCKS, source="playbook hub")
def the_parts_are_the_wall_clock(stack: Lifecycle, spans: tuple[Span, ...], start: int, end: int, parts: Parts) -> None:
    """Step, compile, checkpoint, data, eval and idle partition the wall clock: they add up to it exactly, an instant
    inside nested spans belongs to the innermost, and goodput is step / wall.

    A cold compiled lane spends a long time before its first collective. Counted as step time, it makes a slow start
    look like slow steps. Counted twice, it adds seconds that did not exist.
    """
    found = stack.goodput(spans, start, end)
    _adds_up(found, end - start)
    for part in PARTS:
        took, expected = found.parts.get(part, 0), parts.get(part, 0)
        assert took == expected, f"{part} took {took} ms, expected {expected} of {end - start}: {dict(found.parts)}"
    share = parts.get("step", 0) / (end - start)
    assert abs(found.goodput - share) < 1e-6, f"goodput is {found.goodput}, expected {share} (step / wall)"


def _adds_up(found: Goodput, wall: int) -> None:
    assert found.wall == wall, f"the wall clock is {found.wall} ms, expected {wall}"
    unknown = set(found.parts) - set(PARTS)
    assert not unknown, f"{sorted(unknown)} are not among {', '.join(PARTS)}"
    total = sum(found.parts.values())
    assert total == wall, f"the parts add up to {total} ms, the wall clock is {wall}: {dict(found.parts)}"


STEADY: dict[str, tuple[tuple[Span, ...], int, int, tuple[int, ...], int]] = {  # spans, clock, steady steps, their ms
    "first-step-compiles": (WHOLE, 0, 10_000, (1, 2), 2000),
    "recompiles-in-the-middle": (
        (
            _span("step", 0, 100), _span("step", 100, 900), _span("compile", 150, 800), _span("step", 900, 1010),
            _span("step", 1010, 1700), _span("checkpoint", 1110, 1700), _span("step", 1700, 1790),
        ),
        0, 2000, (0, 2, 4), 300,
    ),
    "evaluates-inside-a-step": (
        (_span("step", 20, 80), _span("step", 80, 400), _span("eval", 100, 400), _span("step", 400, 470)),
        0, 500, (0, 2), 130,
    ),
    "asynchronous-save": (ASYNC, 0, 7000, (0, 1), 4000),
    "waits-for-data-are-no-step-time": (WAITS, 0, 2000, (0, 1), 1100),
    "killed-inside-a-step": ((_span("step", 0, 100), _span("step", 100, None)), 0, 5000, (0,), 100),
    "every-step-compiles": (
        (_span("step", 0, 100), _span("compile", 0, 90), _span("step", 100, 200), _span("compile", 110, 200)),
        0, 200, (), 0,
    ),
}  # fmt: skip


@contract("GOOD-01a", asks="goodput", cases=STEADY, source="playbook modal")
def compile_and_saves_stay_out_of_a_step_time(
    stack: Lifecycle, spans: tuple[Span, ...], start: int, end: int, steady: tuple[int, ...], took: int
) -> None:
    """Step time uses only the steps that no compilation, save or evaluation delayed, and lists these steps. Waits for
    data are counted separately.

    Dropping "the first ten steps" keeps the recompilation at step eleven. A step that includes a save makes every
    average a statement about the disk.
    """
    found = stack.goodput(spans, start, end)
    steps = sum(span.kind == "step" for span in spans)
    assert found.steps == steps, f"{found.steps} steps are counted, {steps} were recorded"
    assert tuple(found.steady) == steady, f"the steady steps are {found.steady}, expected {steady} of {steps}"
    assert found.steady_ms == took, f"the steady steps took {found.steady_ms} ms, expected {took}"


OVERLAPS: dict[str, tuple[tuple[Span, ...], int]] = {  # spans that overlap without nesting, wall
    "save-runs-into-the-next-step": ((_span("step", 0, 20), _span("checkpoint", 15, 32), _span("step", 30, 50)), 60),
    "loader-overlaps-two-steps": (
        (_span("step", 2, 14), _span("data", 10, 24), _span("step", 20, 33), _span("eval", 30, 41)), 45,
    ),
    "chain-inside-a-step": (
        (_span("step", 0, 50), _span("compile", 5, 20), _span("data", 15, 30), _span("checkpoint", 25, 60)), 64,
    ),
    "same-extent": ((_span("step", 3, 19), _span("compile", 3, 19), _span("step", 19, 27)), 30),
    "same-start": ((_span("data", 4, 9), _span("step", 4, 30), _span("eval", 4, 17)), 33),
}  # fmt: skip


@contract("GOOD-01b", asks="goodput", cases=OVERLAPS, source="hub")
def an_overlap_is_counted_once(stack: Lifecycle, spans: tuple[Span, ...], wall: int) -> None:
    """If spans overlap without nesting, each instant belongs to exactly one of the spans that cover it; the stack
    chooses the rule. The parts still add up, and idle is the time that no span covers.

    Timers of a loader thread and of the training loop do overlap. A sum of their lengths says that a run was 110 %
    busy.
    """
    found = stack.goodput(spans, 0, wall)
    _adds_up(found, wall)
    at = [
        {span.kind for span in spans if span.start <= ms < (wall if span.end is None else span.end)}
        for ms in range(wall)
    ]
    bare = sum(not kinds for kinds in at)
    assert found.parts.get("idle", 0) == bare, f"idle is {found.parts.get('idle', 0)} ms, nothing runs for {bare}"
    for part in PARTS[:-1]:
        alone, covered = sum(kinds == {part} for kinds in at), sum(part in kinds for kinds in at)
        took = found.parts.get(part, 0)
        assert alone <= took <= covered, f"{part} took {took} ms; it runs for {covered}, by itself for {alone}"


IMPOSSIBLE: dict[str, tuple[tuple[Span, ...], int, int, str]] = {  # spans, clock, a number the refusal names
    "ends-before-it-starts": ((_span("step", 0, 100), _span("step", 4200, 4100)), 0, 9000, "4100"),
    "starts-before-the-clock": ((_span("compile", 250, 900), _span("step", 900, 1100)), 300, 9000, "250"),
    "ends-after-the-clock": ((_span("step", 100, 200), _span("checkpoint", 8000, 9400)), 0, 9000, "9400"),
    "clock-that-stands": ((), 700, 700, "700"),
}


@contract("GOOD-01c", asks="goodput", cases=IMPOSSIBLE, source="hub")
def spans_of_another_clock_are_refused(
    stack: Lifecycle, spans: tuple[Span, ...], start: int, end: int, number: str
) -> None:
    """A span that ends before it starts, or lies outside the wall clock, is refused with its number.

    Two clocks were mixed, or a clock was set back. Silently clipped spans still add up, to a number that nobody
    measured.
    """
    refused = refusal_of(stack.goodput, spans, start, end)
    assert number in str(refused), f"the refusal does not name {number}: {refused}"
