"""Main, month by month: of what a release answers, how much an adapter that was written for it still answers.

    python -m benchmarks.months --repo ~/Megatron-LM --stack megatron --python .venv-megatron-0.19.2/bin/python

The release that is installed for PYTHON is judged once. Of the items that it answers (they hold, are violated or
deviate) every EVERY-th, in the order of the plan, is then asked of the first commit of each month on the main line. The
rows stand in benchmarks/months.json; a commit that stands there is not judged again.
"""

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contracts.spec import codec

PROFILE = "BLK,MOE,OPT-01,OPT-02"
ROWS = Path(__file__).with_name("months.json")
ANSWERED = ("holds", "violated", "deviates")


def firsts(repo: Path, since: str) -> Iterator[tuple[str, str]]:
    """The first commit of each month on the main line, with its day."""
    words = ("log", "--first-parent", "--reverse", "--format=%cs %h", f"--since={since}-01T00:00:00Z", "HEAD")
    text = subprocess.run(["git", "-C", str(repo), *words], capture_output=True, text=True, check=True).stdout
    seen: set[str] = set()
    for day, commit in (line.split() for line in text.splitlines()):
        if day[:7] not in seen and day[:7] >= since:
            seen.add(day[:7])
            yield day, commit


def results(python: str, stack: str, profile: str, folder: Path, *more: str) -> dict[str, dict[str, Any]]:
    """The result of each item; none where nothing could be judged."""
    words = (python, "-P", "-m", "rankproof", "check", "--stack", stack, "--profile", profile, "--report", str(folder))
    subprocess.run([*words, *more], capture_output=True, check=False)
    record = folder / "run.jsonl"
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    told = (json.loads(line).get("result") for line in lines)
    return {f"{each['id']}[{each['case']}]" if each["case"] else each["id"]: each for each in told if each}


def row(stack: str, day: str, commit: str, items: Sequence[str], found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many of these items are answered, how many are about what the stack says that it lacks, and why most of the
    others are not answered."""
    missing = [found.get(item, {"outcome": "not judged", "words": "no record"}) for item in items]
    missing = [each for each in missing if each["outcome"] not in ANSWERED]
    absent = sum(each.get("lack") == "stack" for each in missing)
    why = Counter(f"{each['outcome']}: {' '.join(each['words'].split())[:160]}" for each in missing)
    count = {"answered": len(items) - len(missing), "of": len(items), "absent": absent}
    said = [f"{count} × {words}" for words, count in why.most_common(3)]
    return {"stack": stack, "month": day[:7], "day": day, "commit": commit, **count, "why": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", type=Path, required=True)
    parser.add_argument("--stack", required=True)
    parser.add_argument("--python", required=True, help="the interpreter that has the release")
    parser.add_argument("--since", default="2026-01")
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("reports/months"))
    given = parser.parse_args()
    rows = json.loads(ROWS.read_text(encoding="utf-8")) if ROWS.exists() else []
    released = results(given.python, given.stack, PROFILE, given.out / given.stack)
    items = [item for item, each in released.items() if each["outcome"] in ANSWERED][:: given.every]
    for day, commit in firsts(given.repo, given.since):
        if all((each["stack"], each["commit"]) != (given.stack, commit) for each in rows):
            found = results(
                given.python, given.stack, ",".join(items), given.out / commit, "--at", f"{given.repo}@{commit}"
            )
            rows.append(row(given.stack, day, commit, items, found))
            ROWS.write_text(codec.laid_out(rows) + "\n", encoding="utf-8")
        print(*(each for each in rows if each["commit"] == commit), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
