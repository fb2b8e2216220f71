"""Would this gate have stopped it? Merged fixes of a repository, each judged from the fix back to the commit before it.

    python -m benchmarks.history --repo ~/Megatron-LM --list benchmarks/history.toml --draw
    python -m benchmarks.history --repo ~/Megatron-LM --list benchmarks/history.toml --python .venv/bin/python

`--draw` prints what the rules take, and judges nothing. Otherwise each fix is the base and the commit before it the
head of `check --at`: a fault that the fix has removed is what the change back brings in. A fix is *named* if something
is violated before it and not after it, or further off before it, *blind* if both sides were judged alike, *not asked*
if something could be judged on one side only. The journal has every row; what is in it is judged again with `--again`
only, and then has a second row. The exit code is 0 whatever is found: this measures the suite.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

LONGEST_S = 900.0
"""Of both sides of one profile; a fix that takes longer is not asked."""
JOURNAL = Path(__file__).with_name("history.jsonl")


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A commit that a rule takes, and what is asked about it: in one process, and on four ranks."""

    commit: str
    day: str
    subject: str
    stack: str
    profile: str
    ranks: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a fix. `first` is what the gate says first, `seconds` the time of both sides, `red_s` when the
    first red item of the head was there, from the start of its process; `suite` is the commit that judged."""

    commit: str
    day: str
    subject: str
    stack: str
    profile: str
    fate: str
    first: str
    seconds: float = 0.0
    red_s: float | None = None
    suite: str = ""


def drawn(repo: Path, rule: Mapping[str, Any]) -> Iterator[Fix]:
    """The commits that a rule takes, newest first."""
    days = (f"--since={rule['since']}T00:00:00Z", f"--until={rule['until']}T23:59:59Z")
    text = _git(repo, "log", "--first-parent", "--name-only", "--format=%x00%h%x01%cs%x01%s", *days, "HEAD")
    on_ranks = rule.get("ranks", {"subject": "(?!)", "profile": ""})
    for entry in text.split("\0")[1:]:
        head, *files = entry.splitlines()
        commit, day, subject = head.split("\1")
        asked = [profile for below, profile in rule["profiles"].items() if any(f.startswith(below) for f in files)]
        if asked and re.search(rule["subject"], subject):
            profile = ",".join(dict.fromkeys(",".join(asked).split(",")))
            ranks = on_ranks["profile"] if re.search(on_ranks["subject"], subject) else ""
            yield Fix(commit=commit, day=day, subject=subject, stack=rule["stack"], profile=profile, ranks=ranks)


def taken(repo: Path, rules: Iterable[Mapping[str, Any]]) -> list[Fix]:
    """The commits that these rules take; the first that takes one has it."""
    found: dict[str, Fix] = {}
    for rule in rules:
        for fix in drawn(repo, rule):
            found.setdefault(fix.commit, fix)
    return list(found.values())


def judged(repo: Path, fix: Fix, python: str, out: Path) -> Row:
    """Judge the change from a fix back to the commit before it: in one process, then on ranks if nothing is red."""
    row = _of_one_process(repo, fix, python, out / fix.commit)
    if row.fate == "named" or not fix.ranks:
        return row
    several = _of_one_process(
        repo, replace(fix, profile=fix.ranks), python, out / f"{fix.commit}-ranks", "--ranks", "4"
    )
    told = max(row, several, key=lambda each: ("blind", "not asked", "named").index(each.fate))
    return replace(told, profile=f"{fix.profile}; 4 ranks", seconds=round(row.seconds + several.seconds, 1))


def _of_one_process(repo: Path, fix: Fix, python: str, folder: Path, *more: str) -> Row:
    began = time.perf_counter()
    change = f"{fix.commit}..{fix.commit}~1"
    words = (python, "-P", "-m", "rankproof", "check", "--stack", fix.stack, "--profile", fix.profile, "--json",
             "--at", f"{repo}@{change}", "--changed", change, "--report", str(folder), *more)  # fmt: skip
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LONGEST_S)
        told = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        said = done.stderr.strip()[-200:]
    except subprocess.TimeoutExpired:
        told, said = {}, f"took longer than {LONGEST_S:.0f} s"
    seconds = time.perf_counter() - began
    fate, first = fate_of(told.get("items", ()), told.get("headline", said))
    return Row(commit=fix.commit, day=fix.day, subject=fix.subject, stack=fix.stack, profile=fix.profile, fate=fate,
               first=first, seconds=round(seconds, 1), red_s=_red_s(folder, told, seconds),
               suite=_git(Path(__file__).parent, "rev-parse", "--short=8", "HEAD").strip())  # fmt: skip


def fate_of(items: Iterable[Mapping[str, Any]], headline: str) -> tuple[str, str]:
    """What became of a fix, and the first words about it."""
    for fate, kinds in (("named", ("new", "worse")), ("not asked", ("lost", "unknown"))):
        for each in items:
            if each["kind"] in kinds:
                head = each["head"] or {"outcome": "not planned", "words": ""}
                return fate, f"{each['item']}: {head['outcome']}: {' '.join(head['words'].split())[:240]}"
    judged_alike = re.search(r"\d+ (hold|better|violated on both sides)", headline)
    return "blind" if judged_alike else "not asked", headline


def _red_s(folder: Path, told: Mapping[str, Any], seconds: float) -> float | None:
    """When the head's first red item was there: half of what both sides took beside their items, and its items."""
    red = {each["item"] for each in told.get("items", ()) if each["kind"] in ("new", "worse")}
    if not red:
        return None
    base, head = (_items(folder / side / "run.jsonl") for side in ("base", "head"))
    beside = (seconds - sum(took for _, took in (*base, *head))) / 2
    at = next(number for number, (item, _) in enumerate(head) if item in red)
    return round(beside + sum(took for _, took in head[: at + 1]), 1)


def _items(record: Path) -> list[tuple[str, float]]:
    """The items of a record in the order in which they were judged, with the seconds of each."""
    lines = (json.loads(line) for line in record.read_text(encoding="utf-8").splitlines())
    results = (line["result"] for line in lines if "result" in line)
    return [(f"{each['id']}[{each['case']}]" if each["case"] else each["id"], each["seconds"]) for each in results]


def aside(fix: Fix, why: Mapping[str, Any]) -> Row:
    """The row of a fix that is set aside, with the kind of reason."""
    return Row(commit=fix.commit, day=fix.day, subject=fix.subject, stack=fix.stack, profile="", first=why["why"],
               fate=why["kind"])  # fmt: skip


def rows_of(journal: Path) -> list[Row]:
    """Every row of a journal, in the order in which they were judged."""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    return [Row(**json.loads(line)) for line in lines]


def kept(
    repo: Path, fixes: Iterable[Fix], reasons: Iterable[Mapping[str, str]], python: str, out: Path, *,
    journal: Path | None = None, again: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """The row of each fix: set aside, from the journal, or judged now and written into the journal."""
    out.mkdir(parents=True, exist_ok=True)
    journal, why = journal or out / "history.jsonl", {each["commit"]: each for each in reasons}
    rows = {row.commit: row for row in rows_of(journal)}
    for fix in fixes:
        if fix.commit in why:
            yield aside(fix, why[fix.commit])
        elif fix.commit in rows and not again:
            yield rows[fix.commit]
        else:
            row = judged(repo, fix, python, out)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            yield row


def _git(repo: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(repo), *words], capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", type=Path, required=True, help="a clone, whose name is that of the rule's repository")
    parser.add_argument("--list", type=Path, required=True, dest="rules", help="the rules")
    parser.add_argument("--stack", default="", help="the rules of this stack, where the clone has another name")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has what the stack needs")
    parser.add_argument("--out", type=Path, default=Path("reports/history"))
    parser.add_argument("--journal", type=Path, default=None, help="the rows; without it history.jsonl in OUT")
    parser.add_argument("--only", default="", help="judge only these commits of the rules, separated by commas")
    parser.add_argument("--again", action="store_true", help="judge also what the journal has")
    parser.add_argument("--draw", action="store_true", help="print what the rules take, and judge nothing")
    given = parser.parse_args()
    read = tomllib.loads(given.rules.read_text(encoding="utf-8"))
    name = given.repo.resolve().name
    rules = [each for each in read["rule"] if given.stack == each["stack"] or each["repository"].endswith(f"/{name}")]
    if not rules:
        parser.error(f"no rule is about a clone of the name {name!r}; say by --stack whose rules are meant")
    fixes = taken(given.repo, rules)
    if given.draw:
        told = [
            f"{fix.commit} {fix.day} {fix.profile}{'; 4 ranks' if fix.ranks else ''}: {fix.subject}" for fix in fixes
        ]
        print(*told, f"{len(fixes)} fixes", sep="\n")  # noqa: T201
        return
    wanted = [fix for fix in fixes if not given.only or fix.commit in given.only.split(",")]
    fates: Counter[str] = Counter()
    rows = kept(given.repo, wanted, read.get("aside", ()), given.python, given.out,
                journal=given.journal, again=given.again)  # fmt: skip
    for row in rows:
        fates[row.fate] += 1
        print(f"{row.fate:<10} {row.commit} {row.seconds:>6.0f} s  {row.subject}\n  {row.first}", flush=True)  # noqa: T201
    words = ", ".join(f"{count} {fate}" for fate, count in fates.most_common())
    print(f"{len(wanted)} of {len(fixes)} fixes that the rules take: {words}")  # noqa: T201


if __name__ == "__main__":
    main()
