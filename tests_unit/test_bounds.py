"""Readers of what others wrote take twice as long for twice as much, of whatever shape: keys, lines, items, nesting."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from contracts.court import deviations, record
from contracts.harness import kill_matrix
from contracts.spec import codec
from contracts.spec.errors import Refused
from contracts.spec.records import Result
from contracts.stacks.serve import reply
from tests_unit.gate._reported import run_of

pytestmark = pytest.mark.unit
RATIO = 3.0  # twice as much takes twice as long; a quadratic reader takes four times
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
        "expires = 2999-12-31\n"
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


def _seconds(shape: str, n: int, folder: Path) -> float:
    """Of this process's own time, the least of some tries."""
    made, read = SHAPES[shape]
    text, found = made(n), []
    for _ in range(3):
        began = time.process_time()
        with suppress(Refused, RecursionError):
            read(text, folder)
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_as_much_takes_less_than_three_times_as_long(shape: str, tmp_path: Path) -> None:
    n = SIZE
    while (one := _seconds(shape, n, tmp_path)) < 0.02 and n < 50 * SIZE:  # too short to compare
        n *= 2
    assert _seconds(shape, 2 * n, tmp_path) < RATIO * one + 0.02
