"""The tables of docs/history.md: which merged faults the gate names, from the rules, the journal and the notes.

python -m benchmarks.history_page
"""

import json
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.history import JOURNAL, Row, rows_of

HERE = Path(__file__)
PAGE = HERE.parents[1] / "docs/history.md"
SOON_S = 60.0
STACKS = {"loop_lane:Loop": "accelerate"}
JUDGED = ("named", "blind", "not asked")


@dataclass(frozen=True, kw_only=True)
class Fate:
    """A fix that was judged: its first row, its last one, and what somebody found who read it."""

    first: Row
    last: Row
    note: str


def fates(rows: Iterable[Row], notes: Iterable[Mapping[str, str]], aside: Iterable[Mapping[str, str]]) -> list[Fate]:
    """Every fix that was judged and is not set aside, newest first. If a note has a fate, what was red is not the
    fault of that fix; a note with a suite is about what that one judged."""
    said = [(each["commit"], each.get("suite", ""), each) for each in notes]

    def note(row: Row) -> Mapping[str, str]:
        return next((each for commit, suite, each in said if commit == row.commit and suite in ("", row.suite)), {})

    left_out = {each["commit"] for each in aside}
    by_commit: dict[str, list[Row]] = {}
    for row in rows:
        if row.commit not in left_out:
            fate = note(row).get("fate", row.fate)
            by_commit.setdefault(row.commit, []).append(
                row if fate == row.fate else replace(row, fate=fate, red_s=None)
            )
    found = [Fate(first=each[0], last=each[-1], note=note(each[-1]).get("why", "")) for each in by_commit.values()]
    return sorted(found, key=lambda each: (each.last.stack, each.last.day), reverse=True)


def counted(found: Sequence[Fate], aside: Iterable[Mapping[str, str]]) -> tuple[int, int, int]:
    """How many were named when they were first judged, how many are named now, and of how many that a CPU can show."""
    unasked = sum(each["kind"] == "question" for each in aside)
    first, now = (sum(getattr(each, which).fate == "named" for each in found) for which in ("first", "last"))
    return first, now, len(found) + unasked


def summary(found: Sequence[Fate], aside: Sequence[Mapping[str, str]], taken: int) -> list[str]:
    """The figures in words."""
    first, now, of = counted(found, aside)
    kinds = Counter(each["kind"] for each in aside)
    unasked = kinds.pop("question", 0)
    left = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    red = sorted(each.last.red_s for each in found if each.last.fate == "named" and each.last.red_s is not None)
    rest = Counter(each.last.fate for each in found)
    suites = ", ".join(f"`{each}`" for each in sorted({each.last.suite for each in found}))
    lines = [
        f"The rules take {taken} fixes. {kinds.total()} are set aside ({left}), and {taken - of - kinds.total()} were "
        f"not judged yet. **Of the other {of}, {now} are named** ({100 * now / of:.0f} %); {first} were when they were "
        f"first judged. It is blind to {rest['blind']}, {rest['not asked']} could not be asked of a side, and of "
        f"{unasked} nothing asks. Judged by {suites}.",
        "",
    ]
    if red:
        soon = sum(each <= SOON_S for each in red)
        lines += [
            f"With `--changed` the first red item of the change was there after {statistics.median(red):.0f} s in the "
            f"median, start included; within {SOON_S:.0f} s for {soon} of {len(red)}.",
            "",
        ]
    return lines


def page(text: str, rules: Mapping[str, Any], rows: Iterable[Row], months: Sequence[Mapping[str, Any]]) -> str:
    """The text of the page with the tables of today; each stands between its marks."""
    aside: Sequence[Mapping[str, str]] = rules.get("aside", ())
    found = fates(rows, rules.get("note", ()), aside)
    named = [
        *summary(found, aside, sum(rule["takes"] for rule in rules["rule"])),
        *_table("fix | subject | first judged | now | says | s | red after", map(_line, found)),
    ]
    left = _table("fix | kind | why", (f"`{each['commit']}` | {each['kind']} | {each['why']}" for each in aside))
    for mark, lines in (("named", named), ("aside", left), ("months", _monthly(months))):
        begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
        before, rest = text.split(begin)
        text = "\n".join([before + begin, *lines, end + rest.split(end)[1]])
    return text


def _table(head: str, rows: Iterable[str]) -> list[str]:
    return [f"| {head} |", "|---" * (head.count("|") + 1) + "|", *(f"| {row} |" for row in rows)]


def _line(each: Fate) -> str:
    row = each.last
    words = each.note or (row.first if row.fate != "blind" else "")
    shown = words.replace("|", "\\|").replace("[", "\\[").replace("<", "\\<")[:200]
    red = "" if row.red_s is None else f"{row.red_s:.0f} s"
    stack = "Megatron-LM" if row.stack.startswith("megatron") else STACKS.get(row.stack, row.stack)
    subject = row.subject.replace("|", "\\|").replace("[", "\\[")
    return f"{stack} `{row.commit}` | {subject} | {each.first.fate} | {row.fate} | {shown} | {row.seconds:.0f} | {red}"


def _monthly(months: Sequence[Mapping[str, Any]]) -> list[str]:
    told = (
        f"{each['stack']} | {each['month']} | `{each['commit']}` | {each['answered']} of {each['of']} | "
        f"{100 * each['answered'] / each['of']:.0f} % | {each['absent']} | "
        f"{100 * each['answered'] / (each['of'] - each['absent']):.0f} %"
        for each in months
    )
    return _table("stack | month | commit | answered | share | it has not | of the others", told)


def stored() -> tuple[dict[str, Any], list[Row], list[dict[str, Any]]]:
    """The rules, the rows of the journal, and the months."""
    rules = tomllib.loads(HERE.with_name("history.toml").read_text(encoding="utf-8"))
    months = HERE.with_name("months.json")
    return rules, rows_of(JOURNAL), json.loads(months.read_text(encoding="utf-8")) if months.exists() else []


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), *stored()), encoding="utf-8")
