"""Training scripts of public repositories, observed as they stand and with faults planted: who says what.

    python -m benchmarks.public_code --checkouts DIR [--work DIR] [--only LAYOUT,LAYOUT] [--python PYTHON]

public_code.toml has the repositories with their commits, the layouts that were run and the faults. Nothing is fetched:
DIR/NAME is a checkout of each repository that is to run, and PYTHON an interpreter with its packages and this suite.
Each run has a copy of its own, with the few words changed that the layout needs, a fault another few, and the data that
`prepare` writes. A healthy run must violate only what the layout expects (`known`: true findings in public code). A
fault is named if `judge` violates more, and seen with one more trace if `diff` with the healthy run ends with 1, or
with 3 because rows differ. Traces stay in --work and are read again. Prints Markdown; exit code 1 after a false word.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.planted import PAIRS, judged
from contracts.observe.diff import compare
from contracts.observe.merged import Merged
from contracts.observe.trace import read


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A script of a repository on so many ranks, 0 if it starts them itself; `known` is what `judge` says of it as it
    stands, and is true. `one_rank` is the layout that it must equal, but for the words `differs`, which are true; with
    `like`, `judge` compares it with that layout."""

    name: str
    repository: str
    ranks: int
    words: list[str]
    folder: str = "."
    options: list[str] = field(default_factory=list)
    edits: list[list[str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    prepare: str = ""
    known: list[str] = field(default_factory=list)
    one_rank: str = ""
    differs: str = ""
    like: str = "judged"


def _layout(given: dict[str, Any], named: dict[str, dict[str, Any]]) -> Layout:
    """A layout, with what it does not say itself from its `base`, and so on."""
    while base := given.get("base"):
        given = {**named[base], **given, "base": named[base].get("base")}
    return Layout(**{key: given[key] for key in given if key not in ("base", "plant")})


def edited(home: Path, edits: list[list[str]]) -> None:
    for file, old, new in edits:
        text = (home / file).read_text(encoding="utf-8") if (home / file).exists() else ""
        if text.count(old) != 1 and old:
            raise SystemExit(f"{old!r} stands {text.count(old)} times in {file}")
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(text.replace(old, new) if old else new, encoding="utf-8")


def run(layout: Layout, checkout: Path, work: Path, python: str, fault: list[list[str]]) -> Path:
    """The trace of a copy of a checkout, made unless it is there."""
    if not (work / "trace").exists():
        _observe(layout, checkout, work, python, fault)
    if not (work / "trace").exists() or any(
        (each.end or {"error": "died"})["error"] for each in read(work / "trace").ranks
    ):
        raise SystemExit(f"the script failed, as {work / 'said'} says: {(work / 'said').read_text()[-2000:]}")
    return work / "trace"


def _observe(layout: Layout, checkout: Path, work: Path, python: str, fault: list[list[str]]) -> None:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(checkout / layout.folder, work / "copy", ignore=shutil.ignore_patterns(".git"))
    home, env = work / "copy", {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(work / "hf"), **layout.env}
    edited(home, [*layout.edits, *fault])
    if layout.prepare:
        subprocess.run([python, "-c", layout.prepare], cwd=home, env=env, check=True)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={layout.ranks}", "--no-python", python]
    observe = ["-m", "rankproof", "observe", "--steps", "3", "--stop", "--out", str(work / "trace")]
    one_rank = str(work.parents[1] / layout.one_rank / "healthy")
    asked = [each.replace("{one_rank}", one_rank) for each in (*layout.options, *layout.words)]
    with (work / "said").open("w") as said:
        command = [python, *(launch if layout.ranks else ()), *observe, *asked]
        subprocess.run(command, cwd=home, env=env, stdout=said, stderr=said, check=False, timeout=600)


def beside(healthy: Path, sick: Path) -> str:
    """What `diff` says first."""
    found = compare(Merged(read(healthy)), Merged(read(sick)))
    return found.incomparable or next(map(str, found.differences), "")


def cell(said: str) -> str:
    return re.sub(r"\s+", " ", said.split("; ", maxsplit=1)[0]).replace("|", "/")[:140]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkouts", type=Path, required=True, help="a folder with a checkout of each repository")
    parser.add_argument("--work", type=Path, help="where the runs are made and stay")
    parser.add_argument("--only", default="", help="layouts, with commas")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the packages of the scripts")
    asked = parser.parse_args()
    data = tomllib.loads(Path(__file__).with_name("public_code.toml").read_text(encoding="utf-8"))
    only, work = (
        {*filter(None, asked.only.split(","))},
        asked.work or Path(tempfile.mkdtemp(prefix="rankproof-public-code-")),
    )
    false, counts, first = 0, [0, 0, 0], [0, 0, 0]
    named = {each["name"]: each for each in data["layout"]}
    for given in data["layout"]:
        layout = _layout(given, named)
        if (only and layout.name not in only) or not (asked.checkouts / layout.repository).exists():
            continue
        checkout, home = asked.checkouts / layout.repository, work / layout.name
        healthy = run(layout, checkout, home / "healthy", asked.python, [])
        whole = work / layout.one_rank / "healthy/trace"
        said = judged(healthy, layout.like, whole)
        wrong = [f"{id}: {words}" for id, words in said.items() if id not in layout.known]
        wrong += [f"{id} is not violated" for id in layout.known if id not in said]
        if layout.one_rank and layout.like == "judged" and whole.exists():
            one = beside(whole, healthy)
            wrong += (
                [f"diff: {one or 'EQUAL'}"] if bool(one) != bool(layout.differs) or layout.differs not in one else []
            )
        false += bool(wrong)
        tell = "; ".join(map(cell, wrong)) or ", ".join(f"{id}: {cell(said[id])}" for id in layout.known) or "healthy"
        print(f"| {layout.name} | | {'**false**: ' if wrong else ''}{tell} | |", flush=True)  # noqa: T201
        for plant in given.get("plant", ()):
            sick = run(layout, checkout, home / plant["fault"].replace(" ", "-"), asked.python, plant["edits"])
            said = {id: words for id, words in judged(sick, layout.like, whole).items() if id not in layout.known}
            alone = {id for id in said if layout.like == "judged" or id not in PAIRS}
            differs = beside(healthy, sick)
            for each in (counts, first)[: 1 + plant.get("first", False)]:
                each[:] = [sum(pair) for pair in zip(each, (1, bool(alone), bool(said or differs)), strict=True)]
            words = next((f"{id}: {cell(words)}" for id, words in said.items()), "")
            print(f"| {layout.name} | {plant['fault']} | {words} | {cell(differs)} |", flush=True)  # noqa: T201
    for what, (planted, named_once, seen) in (("planted", counts), ("of those of the first trial", first)):
        print(f"\n{planted} {what}: `judge` names {named_once}, with one more trace {seen}")  # noqa: T201
    print(f"{false} false words")  # noqa: T201
    return int(false > 0)


if __name__ == "__main__":
    sys.exit(main())
