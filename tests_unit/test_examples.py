"""docs/put-your-stack-under-test.md is carried out as it stands: its commands, what they print, and its mistakes.

A block of the page has a comment before it: `change: NAME in FILE` is a diff from a mistake to what stands in the
example; `run: with NAME, …; file NAME; ranks; counts` are commands, run in a copy of the example with these mistakes
put back; `in FILE` is code of it; `file: NAME` is a file. In what is printed `…` stands for anything, and with `counts`
a number for any number.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests_unit._parties.running import LANEGATE, ROOT, environment

TOY = ROOT / "docs/examples/toy_trainer"
PAGE = ROOT / "docs/put-your-stack-under-test.md"
BLOCK = re.compile(r"<!-- ([a-z]+):? ?(.*?) -->\n```\w+\n(.*?)```", re.DOTALL)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the toy trainer needs torch"),
]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Commands of the page, and where they are run."""

    mistakes: tuple[str, ...]
    files: tuple[str, ...]
    counts: bool
    ranks: bool
    shown: str


def _blocks(kind: str) -> list[tuple[str, str]]:
    return [(told, text) for found, told, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if found == kind]


def _run(told: str, text: str) -> Run:
    words = [word.strip() for word in told.split(";")]
    said = dict(word.partition(" ")[::2] for word in words)
    listed = {name: tuple(filter(None, said.get(name, "").split(", "))) for name in ("with", "file")}
    return Run(
        mistakes=listed["with"], files=listed["file"], counts="counts" in said, ranks="ranks" in said, shown=text
    )


RUNS = [_run(*block) for block in _blocks("run")]
CHANGES = {told.partition(" in ")[0]: (told.partition(" in ")[2], text) for told, text in _blocks("change")}
FILES = dict(_blocks("file"))
MARKED = [
    pytest.param(
        run,
        marks=pytest.mark.torchrun if run.ranks else (),
        id=f"{number}-{'-and-'.join(run.mistakes) or 'as-it-stands'}",
    )
    for number, run in enumerate(RUNS, start=1)
]


def _put_back(folder: Path, mistake: str) -> None:
    """Undo one diff of the page: what it adds goes, what it removes comes back."""
    name, diff = CHANGES[mistake]
    lines = diff.splitlines()
    now = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("+", " "))
    then = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("-", " "))
    text = (folder / name).read_text(encoding="utf-8")
    assert text.count(now) == 1, f"{name} does not have what {mistake} was mended to:\n{now}"
    (folder / name).write_text(text.replace(now, then), encoding="utf-8")


def _printed(command: str, folder: Path) -> str:
    name, *words = shlex.split(command)
    assert name == "lanegate", f"the page runs {name}"
    done = subprocess.run([LANEGATE, *words], cwd=folder, env=environment(OMP_NUM_THREADS="1"), capture_output=True,
                          text=True, check=False, timeout=280)  # fmt: skip
    return done.stdout + "\n".join(line for line in done.stderr.splitlines() if line.startswith("lanegate: "))


def _pattern(line: str, counts: bool) -> str:
    """What a shown line matches: blanks are alike, … is anything, a number perhaps any number."""
    parts = [re.escape(part) for part in " ".join(line.split()).split("…")]
    pattern = ".*".join(parts)
    return re.sub(r"\d+", lambda _: r"\d+", pattern) if counts else pattern


def _behind(pattern: str, lines: list[str], start: int) -> int:
    """The first line behind a match at or after `start`, -1 for none; a long path may have wrapped what is shown."""
    for first in range(start, len(lines)):
        for wrapped in (1, 2, 3):
            if re.fullmatch(pattern, " ".join(lines[first : first + wrapped])):
                return first + wrapped
    return -1


@pytest.mark.parametrize("run", MARKED)
def test_the_page_prints_what_its_commands_print(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    shutil.copytree(TOY, folder, ignore=shutil.ignore_patterns("__pycache__", "reports"))
    for mistake in run.mistakes:
        _put_back(folder, mistake)
    for name in run.files:
        (folder / name).write_text(FILES[name], encoding="utf-8")
    for part in run.shown.split("$ ")[1:]:
        command, *shown = part.splitlines()
        printed = _printed(command, folder)
        lines, at = [" ".join(line.split()) for line in printed.splitlines()], 0
        for line in shown:
            pattern = _pattern(line, run.counts)
            if line.strip() not in ("", "…"):
                at = _behind(pattern, lines, at)
                assert at >= 0, f"{command}: no {line!r} in\n{printed}"


def test_the_code_on_the_page_stands_in_the_example() -> None:
    shown = _blocks("in")
    assert shown
    for name, text in shown:
        assert text in (TOY / name).read_text(encoding="utf-8"), f"{name} does not have\n{text}"


def test_every_mistake_on_the_page_is_run() -> None:
    assert CHANGES.keys() == {mistake for run in RUNS for mistake in run.mistakes}


def test_the_toy_trains(tmp_path: Path) -> None:
    command = [sys.executable, TOY / "trainer.py", "--steps", "8", "--save", tmp_path]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=environment(OMP_NUM_THREADS="1")
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert (tmp_path / "step_000008.pt").is_file()
