"""Fresh clone to first verdict, and every time that a user waits for, by the clock and in CPU seconds.

    python -m benchmarks.times                          # all rows, more than an hour of a quiet machine
    python -m benchmarks.times --only gate,collection   # some of them
    python -m benchmarks.times --at 87d0567 --at HEAD   # two commits in turn: before and after, on one machine

Each commit is cloned afresh into a scratch folder with environments of its own. Environments that `clone` does not make
are made before the rows after it, also Megatron-Core's where it can be; a row asked without `clone` also compiles what
it imports. A row is the time to the first byte, to the first line that shows a result or how far it is, and to the end.
A command that a commit does not have says so by its exit code, 2; one that misses its target is marked. Prints
Markdown; `--out DIR` also keeps what the commands said.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTSIDE = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
"""What a command does not inherit. Without bytecode each start compiles the suite anew; `make` drops it too."""
PROGRESS = re.compile(r"\b\d+ of \d+\b|\d+%|PASSED|\bkilled\b")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A command of the clone, and what is wanted of it in seconds."""

    command: str
    at_most: float | None = None
    first: float | None = None
    cpu: float | None = None


ROWS: Mapping[str, Row] = {
    "clone": Row(command="make gate"),
    "gate": Row(command="make gate", at_most=180, first=10),
    "mutants": Row(command="{suite} selftest --jobs 2 --report reports/selftest", at_most=240),
    "full gate": Row(command="make gate-all STACK=reference", at_most=420),
    "collection": Row(command="pytest -n 0 -q --collect-only -m unit -k PAT-01 tests_unit", cpu=4),
    "whole collection": Row(command="pytest -q --collect-only --snapshot-warn-unused", cpu=4),
    "test": Row(command="make test", at_most=1080),
}  # fmt: skip
"""`clone` has no environment yet. `full gate` takes the proof that `mutants` leaves, and else makes its own."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Seconds of one command. `first` is when something was said, `result` when it showed how far it is."""

    code: int
    wall: float
    cpu: float
    first: float
    result: float | None
    said: str


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.times", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(ROWS), metavar="ROW,…", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--at", action="append", metavar="COMMIT", help="default: HEAD")
    parser.add_argument("--out", type=Path, metavar="DIR")
    asked = parser.parse_args(argv)
    wanted = asked.only.split(",")
    if unknown := [name for name in wanted if name not in ROWS]:
        parser.error(f"--only knows no {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    print("| commit | row | command | first line, s | first result, s | wall, s | CPU, s | exit code | wanted |")  # noqa: T201
    print("|---|---|---|---|---|---|---|---|---|")  # noqa: T201
    missed = 0
    for commit in asked.at or ["HEAD"]:
        with tempfile.TemporaryDirectory(prefix="timed-") as folder:
            for name, command, found in _rows(_clone(Path(folder), commit), wanted):
                late = _late(ROWS[name], found) if found.code in (0, 3) else ""
                missed += bool(late)
                print(_line(commit, name, command, found, late), flush=True)  # noqa: T201
                if asked.out is not None:
                    asked.out.mkdir(parents=True, exist_ok=True)
                    (asked.out / f"{commit.replace('/', '_')}-{name.replace(' ', '-')}.log").write_text(found.said)
    return 1 if missed else 0


def _clone(folder: Path, commit: str) -> Path:
    clone = folder / "tree"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    sha = subprocess.run(["git", "rev-parse", commit], cwd=ROOT, capture_output=True, text=True, check=True)
    subprocess.run(["git", "checkout", "--quiet", sha.stdout.strip()], cwd=clone, check=True)
    return clone


def _rows(clone: Path, wanted: list[str]) -> Iterator[tuple[str, str, Timed]]:
    """The rows in order. The environment of a commit is made by `clone`, or by `make` before the first other row."""
    scripts = tomllib.loads((clone / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    ready = False
    for name in wanted:
        row = ROWS[name]
        if name != "clone" and not ready:
            subprocess.run(["make", ".venv/.ready", "megatron-if-possible"], cwd=clone, stdout=sys.stderr, check=True)
            ready = True
        command = row.command.format(suite=next(iter(scripts)))
        yield name, command, timed(command, clone)


def timed(command: str, clone: Path) -> Timed:
    """Run a command of a clone and read what it says as it says it."""
    path = os.pathsep.join([str(clone / ".venv/bin"), os.environ["PATH"]])
    inherited = {name: value for name, value in os.environ.items() if name not in OUTSIDE}
    before, began = os.times(), time.monotonic()
    running = subprocess.Popen(
        command, shell=True, cwd=clone, env=inherited | {"PATH": path}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    assert running.stdout is not None
    said: list[str] = []
    first, result = 0.0, None
    for line in running.stdout:
        now = time.monotonic() - began
        first = first or now
        if result is None and PROGRESS.search(line):
            result = now
        said.append(line)
    code = running.wait()
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    wall = time.monotonic() - began
    return Timed(code=code, wall=wall, cpu=cpu, first=first or wall, result=result, said="".join(said))


def _late(row: Row, found: Timed) -> str:
    limits = ((row.at_most, found.wall, "wall"), (row.first, found.result or found.wall, "first result"),
              (row.cpu, found.cpu, "CPU"))  # fmt: skip
    return ", ".join(f"{what} ≤ {most:g}" for most, seen, what in limits if most is not None and seen > most)


def _line(commit: str, name: str, command: str, found: Timed, late: str) -> str:
    result = "–" if found.result is None else f"{found.result:.1f}"
    return (
        f"| {commit} | {name} | `{command}` | {found.first:.1f} | {result} | {found.wall:.1f} | {found.cpu:.1f} |"
        f" {found.code} | {f'missed: {late}' if late else ''} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
