"""Would this gate have stopped it? Merged fixes of a repository, each judged from the fix back to the commit before it.

    python -m benchmarks.history --repo ~/Megatron-LM --list benchmarks/history.toml --draw
    python -m benchmarks.history --repo ~/Megatron-LM --list benchmarks/history.toml --python .venv/bin/python

`--draw` prints what the rule takes, and judges nothing. Otherwise each fix is the base and the commit before it the
head of `check --at`: a fault that the fix has removed is what the change back brings in. A fix is *named* if that is
red, *blind* if both sides were judged alike, *not asked* if a side could not be judged. The journal (`--out`) keeps
each row; what is in it is not judged again. The exit code is 0 whatever is found: this measures the suite.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FATES = {0: "blind", 1: "named", 3: "not asked", 5: "not asked"}


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A commit that the rule takes, and what is asked about it."""

    commit: str
    day: str
    subject: str
    stack: str
    profile: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a fix. `first` is what the gate says first, `seconds` the time of both sides."""

    commit: str
    day: str
    subject: str
    profile: str
    fate: str
    first: str
    seconds: float


def drawn(repo: Path, rule: Mapping[str, Any]) -> Iterator[Fix]:
    """The commits that a rule takes, newest first."""
    days = (f"--since={rule['since']}T00:00:00Z", f"--until={rule['until']}T23:59:59Z")
    text = _git(repo, "log", "--first-parent", "--name-only", "--format=%x00%h%x01%cs%x01%s", *days, "HEAD")
    for entry in text.split("\0")[1:]:
        head, *files = entry.splitlines()
        commit, day, subject = head.split("\1")
        asked = [profile for below, profile in rule["profiles"].items() if any(f.startswith(below) for f in files)]
        if asked and re.search(rule["subject"], subject):
            profile = ",".join(dict.fromkeys(",".join(asked).split(",")))
            yield Fix(commit=commit, day=day, subject=subject, stack=rule["stack"], profile=profile)


def judged(repo: Path, fix: Fix, python: str, out: Path) -> Row:
    """Judge the change from a fix back to the commit before it."""
    folder, began = out / fix.commit, time.perf_counter()
    words = (python, "-P", "-m", "rankproof", "check", "--stack", fix.stack, "--profile", fix.profile, "--json",
             "--at", f"{repo}@{fix.commit}..{fix.commit}~1", "--report", str(folder))  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    red = [each for each in told.get("items", ()) if each["kind"] in ("new", "worse", "lost")]
    first = f"{red[0]['item']}: {red[0]['head']['words'][:200]}" if red else told.get("headline", done.stderr[-200:])
    return Row(commit=fix.commit, day=fix.day, subject=fix.subject, profile=fix.profile, first=first,
               fate=FATES.get(done.returncode, "not asked"), seconds=round(time.perf_counter() - began, 1))  # fmt: skip


def aside(fix: Fix, why: Mapping[str, Any]) -> Row:
    """The row of a fix that is set aside, with the kind of reason."""
    return Row(commit=fix.commit, day=fix.day, subject=fix.subject, profile=fix.profile, first=why["why"],
               fate=why["kind"], seconds=0.0)  # fmt: skip


def kept(
    repo: Path, fixes: Iterable[Fix], reasons: Iterable[Mapping[str, str]], python: str, out: Path
) -> Iterator[Row]:
    """The row of each fix: from the journal, set aside, or judged now and written into the journal."""
    out.mkdir(parents=True, exist_ok=True)
    journal, why = out / "history.jsonl", {each["commit"]: each for each in reasons}
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    rows = {row.commit: row for row in (Row(**json.loads(line)) for line in lines)}
    for fix in fixes:
        row = rows.get(fix.commit)
        if row is None:
            row = aside(fix, why[fix.commit]) if fix.commit in why else judged(repo, fix, python, out)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        yield row


def _git(repo: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(repo), *words], capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", type=Path, required=True, help="a clone, whose name is that of the rule's repository")
    parser.add_argument("--list", type=Path, required=True, dest="rules", help="the rules")
    parser.add_argument("--stack", default="", help="the rule of this stack, where the clone has another name")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has what the stack needs")
    parser.add_argument("--out", type=Path, default=Path("reports/history"))
    parser.add_argument("--only", default="", help="judge these commits of the rule alone, by commas")
    parser.add_argument("--draw", action="store_true", help="print what the rule takes, and judge nothing")
    given = parser.parse_args()
    read = tomllib.loads(given.rules.read_text(encoding="utf-8"))
    name = given.repo.resolve().name
    rules = [each for each in read["rule"] if given.stack == each["stack"] or each["repository"].endswith(f"/{name}")]
    fixes = [fix for rule in rules for fix in drawn(given.repo, rule)]
    if given.draw:
        told = [f"{fix.commit} {fix.day} {fix.profile}: {fix.subject}" for fix in fixes]
        print(*told, f"{len(fixes)} fixes", sep="\n")  # noqa: T201
        return
    wanted = [fix for fix in fixes if not given.only or fix.commit in given.only.split(",")]
    fates: Counter[str] = Counter()
    for row in kept(given.repo, wanted, read.get("aside", ()), given.python, given.out):
        fates[row.fate] += 1
        print(f"{row.fate:<10} {row.commit} {row.seconds:>6.0f} s  {row.subject}\n  {row.first}", flush=True)  # noqa: T201
    words = ", ".join(f"{count} {fate}" for fate, count in fates.most_common())
    print(f"{len(wanted)} of {len(fixes)} fixes that the rule takes: {words}")  # noqa: T201


if __name__ == "__main__":
    main()
