"""Mutants of the court's own code, by cosmic-ray, drawn by seed, each put before the tests about its file.

    python -m benchmarks.mutate_court --tool .venv-mutate/bin/cosmic-ray --count 40 --seed 1
    python -m benchmarks.mutate_court --tool … --only narrowing --time 600

The files are changed in a copy, never here. The journal (`--out`) lets the next run go on, as long as the court and its
tests are the same. A survivor is printed with its change. The exit code is 1 where fewer than nine in ten are killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
JOURNAL = "mutants.jsonl"
LIMIT_S = 900.0
LEAST = 0.9
TESTS: Mapping[str, tuple[str, ...]] = {  # a file of the court → the tests about it, in tests_unit
    "baseline": ("gate/test_baseline.py",),
    "causes": ("gate/test_reports.py",),
    "deviations": ("gate/test_deviations.py",),
    "fitness": ("gate/test_fitness.py",),
    "narrowing": ("gate/test_float32.py",),
    "pairs": ("gate/test_pairs.py",),
    "plain_text": ("gate/test_reports.py", "gate/test_hostile.py"),
    "profiles": ("gate/test_gate_plugin.py", "gate/test_ladder.py"),
    "sources": ("gate/test_reports.py",),
    "telling": ("gate/test_reports.py",),
    "verdict": ("gate/test_deviations.py", "gate/test_baseline.py", "gate/test_coverage.py"),
}
Spec = tuple[str, str, int, int]
"""File of the court, operator, the how manieth place where it applies, its line."""


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--tool", required=True, type=Path, help="the cosmic-ray of an environment of its own")
    words.add_argument("--count", type=int, default=40)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--only", choices=sorted(TESTS))
    words.add_argument("--time", type=float, help="begin none after so many seconds")
    words.add_argument("--out", type=Path, default=Path("reports/mutate-court"))
    asked = words.parse_args()
    tool, out = asked.tool.absolute(), asked.out.absolute()
    tree, until = _copied(out), time.monotonic() + asked.time if asked.time else None
    drawn = _drawn(tool, tree, [asked.only] if asked.only else sorted(TESTS), asked.seed)[: asked.count]
    known: dict[tuple[Any, ...], str] = {tuple(row["spec"]): row["fate"] for row in _journal(out)}
    for subject in sorted({spec[0] for spec in drawn if spec not in known}):
        if _tested(tree, subject).returncode:  # every mutant would be killed
            sys.exit(f"the tests about {subject}.py fail in {tree} without a mutant")
    for spec in drawn:
        if spec in known or (until is not None and time.monotonic() > until):
            continue
        fate, change = _tried(tool, tree, spec)
        known[spec] = fate
        with (out / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"spec": spec, "fate": fate, "change": change}) + "\n")
        print(f"{fate:<9} {spec[0]}.py:{spec[3]} {spec[1]}{change if fate == 'survived' else ''}", flush=True)  # noqa: T201
    fates = [known[spec] for spec in drawn if spec in known]
    killed = len(fates) - fates.count("survived")  # what does not even import is incompetent, and was noticed
    print(f"{killed} of {len(fates)} killed by the tests about their file")  # noqa: T201
    return int(not fates or killed < LEAST * len(fates))


def _copied(out: Path) -> Path:
    """The tracked files in a folder of their own; it, and the journal, begin anew where court or tests changed."""
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    content = hashlib.sha256()
    for name in names:
        if name.startswith(("contracts/court/", "tests_unit/gate/")):
            content.update(name.encode() + (ROOT / name).read_bytes())
    tree, mark = out / "tree", out / "content"
    if not mark.exists() or mark.read_text() != content.hexdigest():
        shutil.rmtree(out, ignore_errors=True)
    for name in names:  # also where all is the same: a run that was ended left its mutant there
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    mark.write_text(content.hexdigest())
    return tree


def _drawn(tool: Path, tree: Path, subjects: list[str], seed: int) -> list[Spec]:
    """Every mutant of some files, in an order that the seed gives."""
    found: list[Spec] = []
    for subject in subjects:
        session, config = tree / f"{subject}.sqlite", tree / f"{subject}.toml"
        if not session.exists():
            config.write_text(
                f'[cosmic-ray]\nmodule-path = "contracts/court/{subject}.py"\ntimeout = {LIMIT_S}\n'
                'excluded-modules = []\ntest-command = "true"\n[cosmic-ray.distributor]\nname = "local"\n'
            )
            subprocess.run((tool, "init", config.name, session.name), cwd=tree, check=True)
        with sqlite3.connect(session) as held:
            rows = held.execute("SELECT operator_name, occurrence, start_pos_row FROM mutation_specs ORDER BY 1, 2")
            # `|` stands in annotations (`str | None`) mostly, where a change changes nothing that runs.
            found += [(subject, str(name), int(nth), int(line)) for name, nth, line in rows if "BitOr" not in name]
    return random.Random(seed).sample(found, len(found))


def _tried(tool: Path, tree: Path, spec: Spec) -> tuple[str, str]:
    """Whether the tests about a file see one mutant of it, and the change."""
    subject, operator, nth, _ = spec
    words = (tool, "mutate-and-test", f"contracts/court/{subject}.py", operator, str(nth), " ".join(_command(subject)))
    done = subprocess.run(words, cwd=tree, env=_environment(tree), capture_output=True, text=True, check=False)
    told = json.loads(done.stdout[done.stdout.index("{") :])
    changed = [line for line in told["diff"].splitlines() if re.match(r"[-+](?![-+])", line)]
    return str(told["test_outcome"]), "".join(f"\n    {line}" for line in changed)


def _tested(tree: Path, subject: str) -> subprocess.CompletedProcess[bytes]:
    """The tests about a file as it is."""
    return subprocess.run(_command(subject), cwd=tree, env=_environment(tree), check=False)


def _command(subject: str) -> tuple[str, ...]:
    tests = (f"tests_unit/{name}" for name in TESTS[subject])
    return (sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests)


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


def _journal(out: Path) -> Iterator[dict[str, Any]]:
    file = out / JOURNAL
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        if line.endswith("}"):
            yield json.loads(line)


if __name__ == "__main__":
    sys.exit(main())
