"""The partition of a wall clock by this suite's own rule, and as a command; GOOD judges what holds by any rule."""

import json
from pathlib import Path

import pytest

from contracts.spec.goodput import Span, goodput
from tests_unit._parties.running import invoked


def test_of_two_overlapping_spans_the_earlier_keeps_the_overlap() -> None:
    found = goodput((Span(kind="step", start=0, end=20), Span(kind="data", start=15, end=32)), 0, 40)
    assert found.parts == {"step": 20, "compile": 0, "checkpoint": 0, "data": 12, "eval": 0, "idle": 8}


def test_a_step_that_overlaps_a_save_is_not_a_steady_step() -> None:
    found = goodput((Span(kind="checkpoint", start=0, end=10), Span(kind="step", start=5, end=20)), 0, 20)
    assert (found.parts["step"], found.steady) == (10, ())


def test_goodput_of_a_hundred_thousand_spans_is_computed_quickly() -> None:
    spans = [Span(kind="step", start=10 * i, end=10 * i + 9) for i in range(50_000)]
    spans += [Span(kind="compile", start=10 * i + 1, end=10 * i + 4) for i in range(0, 50_000, 50)]
    found = goodput(spans, 0, 500_000)
    assert found.parts["compile"] == 3000
    assert found.parts["idle"] == 50_000
    assert len(found.steady) == 49_000


def test_the_goodput_command_prints_each_part_of_the_wall_clock(tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    spans = [
        {"kind": "step", "start": 0, "end": 4000}, {"kind": "compile", "start": 500, "end": 3500},
        {"kind": "step", "start": 4000, "end": 5000}, {"kind": "checkpoint", "start": 5000, "end": None},
    ]  # fmt: skip
    path.write_text(json.dumps({"start": 0, "end": 10_000, "spans": spans}))
    assert invoked("goodput", path, code=0).output.splitlines() == [
        "step                2.000 s   20.0%",
        "compile             3.000 s   30.0%",
        "checkpoint          5.000 s   50.0%",
        "data                0.000 s    0.0%",
        "eval                0.000 s    0.0%",
        "idle                0.000 s    0.0%",
        "wall               10.000 s   goodput 20.0%",
        "1 of 2 steps ran undisturbed, 1000.0 ms each",
    ]
    assert json.loads(invoked("goodput", path, "--json").output)["parts"]["checkpoint"] == 5000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ('{"start": 0, "end": 5, "spans": [{"kind": "nap", "start": 0, "end": 1}]}', "nap"),
        ('{"start": 0, "end": 5, "spans": [{"kind": "step", "start": 0, "end": 9}]}', "leaves the clock"),
        ('{"start": 0.5, "end": 5, "spans": []}', "spans.start"),
    ],
)
def test_the_goodput_command_refuses_a_malformed_clock(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "spans.json"
    path.write_text(text)
    assert said in invoked("goodput", path, code=2).stderr
