"""Readers of what others wrote take time in proportion to its size, of whatever shape: keys, lines, items, nesting."""

import datetime
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from contracts.court import deviations, record
from contracts.harness import kill_matrix
from contracts.harness.gate import today
from contracts.spec import Refused, codec
from contracts.spec.records import Result
from contracts.stacks.serve import reply
from tests_unit.gate._reported import run_of

GROWTH = 8
RATIO = 27.0  # a linear reader takes 8 times as long, a quadratic one 64 times; 3 for each doubling
TRIES = 4  # the least of some: other work on the machine only adds
SIZE = 4000


def _object(n: int, last: str = "") -> str:
    """Many keys, and one that is given again after all others."""
    return "{" + ",".join(f'"k{number}":0' for number in range(n)) + last + "}"


def _entry(number: int) -> str:
    fields = {
        "id": "PAT-01",
        "case": f"c{number}",
        "reason": "r",
        "issue": "#1",
        "owner": "o",
        "says": f"# of {number}",
    }
    return "[[deviation]]\n" + "".join(f"{key} = {json.dumps(each)}\n" for key, each in fields.items()) + (
        f"expires = {today() + datetime.timedelta(days=90)}\n"
    )  # fmt: skip


def _toml(read: Callable[[Path], object], text: str, folder: Path) -> None:
    (folder / "file").write_text(text)
    read(folder / "file")


def _whole(n: int) -> str:
    results = [
        Result(id="PAT-01", case=f"c{number}", outcome="violated", words=f"{number} of {n}") for number in range(n)
    ]
    return record.write(run_of(*results), datetime.date(2026, 11, 26))


SHAPES: dict[str, tuple[Callable[[int], str], Callable[[str, Path], object]]] = {
    "keys of an object": (_object, lambda text, _: codec.loads(dict[str, object], text)),
    "a key repeated": (lambda n: _object(n, ',"z":0,"z":1'), lambda text, _: codec.loads(dict[str, object], text)),
    "a key of a record repeated": (lambda n: _object(n, ',"z":0,"z":1') + "\n", lambda text, _: record.read(text)),
    "unknown keys of a record": (lambda n: _object(n) + "\n", lambda text, _: record.read(text)),
    "lines of a record": (lambda n: '{"result":{"id":"A"}}\n' * n, lambda text, _: record.read(text)),
    "results of a whole record": (_whole, lambda text, _: record.read(text)),
    "nested arrays": (lambda n: "[" * n + "]" * n, lambda text, _: codec.loads(dict[str, object], text)),
    "keys of a question": (lambda n: _object(n, ',"z":0,"z":1'), lambda text, _: reply(object(), text)),  # type: ignore[arg-type]
    "keys of a proof": (lambda n: _object(n, ',"z":0,"z":1'), lambda text, at: _toml(kill_matrix.load, text, at)),
    "entries of deviations": (
        lambda n: "".join(map(_entry, range(n // 10))), lambda text, at: _toml(deviations.load, text, at)
    ),
    "faults of deviations": (
        lambda n: "".join(map(_entry, range(n // 10))).replace("reason", "raeson"),
        lambda text, at: _toml(deviations.load, text, at),
    ),
}  # fmt: skip


def _seconds(shape: str, text: str, folder: Path) -> float:
    """Of this process's own time."""
    began = time.process_time()
    with suppress(Refused, RecursionError):
        SHAPES[shape][1](text, folder)
    return time.process_time() - began


@pytest.mark.parametrize("shape", SHAPES)
def test_eight_times_the_input_takes_less_than_27_times_as_long(shape: str, tmp_path: Path) -> None:
    made, n = SHAPES[shape][0], SIZE
    while (one := _seconds(shape, made(n), tmp_path)) < 0.01 and n < 16 * SIZE:  # too short to compare
        n *= 2
    few, many, more = made(n), made(GROWTH * n), float("inf")
    for _ in range(TRIES):
        more = min(more, _seconds(shape, many, tmp_path))
        if more < RATIO * one + 0.02:
            return
        one = min(one, _seconds(shape, few, tmp_path))
    pytest.fail(f"{more:.3f} s for {len(many):,} characters, {one:.3f} s for {len(few):,}")
