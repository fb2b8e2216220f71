"""The partition of a wall clock, against a simulation that looks at every millisecond."""

import json
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.harness.cli import main
from contracts.spec.goodput import KINDS, PARTS, Span, goodput

SETTINGS = settings(max_examples=150)
WALL = 60


@st.composite
def spans_at_random(draw: st.DrawFn) -> tuple[Span, ...]:
    """Up to nine spans in 0 … WALL that may touch, nest, overlap, coincide, last no time or stay open."""
    found = []
    for _ in range(draw(st.integers(0, 9))):
        start = draw(st.integers(0, WALL))
        end = draw(st.one_of(st.none(), st.integers(start, WALL)))
        found.append(Span(kind=draw(st.sampled_from(KINDS)), start=start, end=end, background=draw(st.booleans())))
    return tuple(found)


@st.composite
def nested_spans(draw: st.DrawFn) -> tuple[tuple[Span, int], ...]:
    """Spans with their depth, each strictly inside the one above it or beside its siblings."""
    found: list[tuple[Span, int]] = []

    def fill(start: int, end: int, depth: int) -> None:
        now = start
        while end - now >= 3 and draw(st.booleans()):
            begins = draw(st.integers(now, end - 2))
            ends = draw(st.integers(begins + 1, end))
            found.append((Span(kind=draw(st.sampled_from(KINDS)), start=begins, end=ends), depth))
            if depth < 4:
                fill(begins + 1, ends, depth + 1)
            now = ends

    fill(0, WALL, 0)
    return tuple(found)


def covers(span: Span, ms: int) -> bool:
    return span.start <= ms < (WALL if span.end is None else span.end)


@SETTINGS
@given(spans_at_random())
def test_the_parts_add_up_whatever_overlaps(spans: tuple[Span, ...]) -> None:
    found = goodput(spans, 0, WALL)
    assert tuple(found.parts) == PARTS
    assert sum(found.parts.values()) == found.wall == WALL
    at = [{span.kind for span in spans if covers(span, ms)} for ms in range(WALL)]
    assert found.parts["idle"] == sum(not kinds for kinds in at)
    for kind in KINDS:
        assert sum(kinds == {kind} for kinds in at) <= found.parts[kind] <= sum(kind in kinds for kinds in at)
    assert 0 <= found.goodput <= 1


@SETTINGS
@given(nested_spans(), st.randoms(use_true_random=False))
def test_the_innermost_span_owns_the_instant_in_whichever_order_they_come(
    tree: tuple[tuple[Span, int], ...], random: Random
) -> None:
    expected = dict.fromkeys(PARTS, 0)
    owners = []
    for ms in range(WALL):
        held = [(depth, span) for span, depth in tree if covers(span, ms)]
        owners.append(max(held, key=lambda each: each[0])[1] if held else None)
        expected[owners[-1].kind if owners[-1] else "idle"] += 1
    shuffled = [span for span, _ in tree]
    random.shuffle(shuffled)
    found = goodput(shuffled, 0, WALL)
    assert found.parts == expected
    steps = sorted((span for span, _ in tree if span.kind == "step"), key=lambda span: (span.start, span.end))
    calm = [
        place for place, step in enumerate(steps)
        if not any(o is not None and covers(step, ms) and o.kind in ("compile", "checkpoint", "eval")
                   for ms, o in enumerate(owners))
    ]  # fmt: skip
    assert found.steady == tuple(calm)
    assert found.steps == len(steps)


@SETTINGS
@given(spans_at_random())
def test_background_spans_take_nothing_but_idle_time(spans: tuple[Span, ...]) -> None:
    front = goodput(tuple(span for span in spans if not span.background), 0, WALL)
    all_of_them = goodput(spans, 0, WALL)
    assert all(all_of_them.parts[kind] >= front.parts[kind] for kind in KINDS)
    if all(span.background for span in spans if span.kind == "checkpoint"):
        others = ("compile", "data", "eval", "step")
        background = {span.kind for span in spans if span.background}
        assert all(all_of_them.parts[kind] == front.parts[kind] for kind in others if kind not in background)


def test_of_two_that_overlap_the_first_keeps_what_it_has() -> None:
    found = goodput((Span(kind="step", start=0, end=20), Span(kind="data", start=15, end=32)), 0, 40)
    assert found.parts == {"step": 20, "compile": 0, "checkpoint": 0, "data": 12, "eval": 0, "idle": 8}


def test_a_step_that_begins_in_the_tail_of_a_save_is_not_steady() -> None:
    found = goodput((Span(kind="checkpoint", start=0, end=10), Span(kind="step", start=5, end=20)), 0, 20)
    assert (found.parts["step"], found.steady) == (10, ())


def test_a_long_run_is_cut_in_no_time() -> None:
    spans = [Span(kind="step", start=10 * i, end=10 * i + 9) for i in range(50_000)]
    spans += [Span(kind="compile", start=10 * i + 1, end=10 * i + 4) for i in range(0, 50_000, 50)]
    found = goodput(spans, 0, 500_000)
    assert found.parts["compile"] == 3000
    assert found.parts["idle"] == 50_000
    assert len(found.steady) == 49_000


def test_the_command_prints_the_partition(tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    spans = [
        {"kind": "step", "start": 0, "end": 4000}, {"kind": "compile", "start": 500, "end": 3500},
        {"kind": "step", "start": 4000, "end": 5000}, {"kind": "checkpoint", "start": 5000, "end": None},
    ]  # fmt: skip
    path.write_text(json.dumps({"start": 0, "end": 10_000, "spans": spans}))
    done = CliRunner().invoke(main, ["goodput", str(path)])
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "step                2.000 s   20.0%",
        "compile             3.000 s   30.0%",
        "checkpoint          5.000 s   50.0%",
        "data                0.000 s    0.0%",
        "eval                0.000 s    0.0%",
        "idle                0.000 s    0.0%",
        "wall               10.000 s   goodput 20.0%",
        "1 of 2 steps ran undisturbed, 1000.0 ms each",
    ]
    as_json = CliRunner().invoke(main, ["goodput", str(path), "--json"])
    assert json.loads(as_json.output)["parts"]["checkpoint"] == 5000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ('{"start": 0, "end": 5, "spans": [{"kind": "nap", "start": 0, "end": 1}]}', "nap"),
        ('{"start": 0, "end": 5, "spans": [{"kind": "step", "start": 0, "end": 9}]}', "leaves the clock"),
        ('{"start": 0.5, "end": 5, "spans": []}', "spans.start"),
    ],
)
def test_the_command_refuses_what_is_no_clock(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "spans.json"
    path.write_text(text)
    done = CliRunner().invoke(main, ["goodput", str(path)])
    assert done.exit_code == 2
    assert said in done.stderr
