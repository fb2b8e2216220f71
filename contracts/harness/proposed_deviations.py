"""Deviations as a record suggests them: new entries for what is violated, and the words of entries that name none.

Nobody writes `says` and `tensors` by hand: they are taken from what the check said, with `#` for each number and, where
several tensors differ alike, `*` for their names.
"""

import datetime
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from contracts.court.deviations import covers, forgives, masked
from contracts.spec import refuse
from contracts.spec.records import Deviation, Result, Run, Violation

DAYS = 30  # that a proposed deviation lasts
LONGEST = 160  # characters of the words that are proposed
_LISTS = re.compile(r"\[[#, ]+\](?:, \[[#, ]+\])*")  # of ranks and positions, which differ from rank to rank
_PATH = re.compile(r"'[^' ]*/[^' ]*'")  # of a temporary folder
_DISTANCE = re.compile(r"differs: (?:L2|largest|row) error")  # whichever is worst on this CPU
_HEADER = re.compile(r"^\[\[deviation\]\]", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Forgiven:
    """What one entry must say, and the tensors it must name, to forgive a part of a violation."""

    says: str
    tensors: tuple[str, ...] = ()

    def lines(self) -> str:
        told = f"says = {json.dumps(self.says, ensure_ascii=False)}\n"
        if not self.tensors:
            return told
        row = ", ".join(json.dumps(each) for each in self.tensors)
        if len(row) < 100:
            return f"{told}tensors = [{row}]\n"
        return f"{told}tensors = [\n{textwrap.indent(textwrap.fill(f'{row},', 116, break_on_hyphens=False), '  ')}\n]\n"


def needed(parts: Iterable[Violation]) -> tuple[Forgiven, ...]:
    """The entries that together forgive these parts, in the order in which the parts were found."""
    found: dict[str, list[str]] = {}
    for part in parts:
        found.setdefault(_says(part), []).extend([part.tensor] if part.tensor else [])
    return tuple(Forgiven(says=says, tensors=tuple(sorted(set(names)))) for says, names in found.items())


def _says(part: Violation) -> str:
    """The words of a part, as an entry names them: of a tensor only what is wrong with it, without the figures."""
    first = masked(next(iter(part.words.strip().splitlines()), ""))
    if part.tensor:
        return re.split(r"[:;#(]", first.replace(part.tensor, "*"), maxsplit=1)[0].strip()
    first = _DISTANCE.sub("differs: * error", _LISTS.sub("*", _PATH.sub("*", first)))
    return (first if len(first) <= LONGEST else first[:LONGEST].rsplit(" ", 1)[0]).rstrip(" *")


def proposal(run: Run, results: Iterable[Result], today: datetime.date) -> str:
    """A deviations file of what is violated and not declared. The gate refuses it until reason, issue and owner are
    filled in."""
    subject = run.header.subject
    head = (
        f"# What {subject.name} {subject.version} ({subject.origin}) did not keep on {today.isoformat()}: a proposal, "
        "and no deviation yet.\n"
        "# Somebody fills in reason, issue and owner of each entry; the gate refuses one in which any is empty.\n"
        f"# Each ends in {DAYS} days by itself, and is red as soon as its contract holds again.\n"
    )
    return head + "".join(_entry(*each, today) for each in _selected(run, list(results)))


def _selected(run: Run, results: list[Result]) -> Iterator[tuple[Result, str, Forgiven]]:
    """A result, the selector that declares it, and what is forgiven: each violated case by name, or all at once where
    every case is violated alike."""
    for _, group in groupby(results, key=lambda result: result.id):
        of_one = list(group)
        violated = [(result, needed(_undeclared(result, run.deviations))) for result in of_one
                    if result.outcome == "violated"]  # fmt: skip
        alike = len(violated) == len(of_one) > 1 and len({needs for _, needs in violated}) == 1
        for result, needs in violated[:1] if alike else violated:
            yield from ((result, "*" if alike else _escaped(result.case), each) for each in needs)


def _undeclared(result: Result, deviations: Iterable[Deviation]) -> list[Violation]:
    about = [each for each in deviations if covers(each, result.item)]
    return [part for part in result.parts if not any(forgives(each, part) for each in about)]


def _escaped(case: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", case)


def _entry(result: Result, case: str, forgiven: Forgiven, today: datetime.date) -> str:
    words = "".join(f"# {line[:112]}\n" for line in result.words.splitlines()[:3])
    expires = today + datetime.timedelta(days=DAYS)
    named = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {"id": result.id, "case": case}.items())
    empty = "".join(f'{key} = ""\n' for key in ("reason", "issue", "owner"))
    return f"\n{words}[[deviation]]\n{named}{forgiven.lines()}{empty}expires = {expires.isoformat()}\n"


def filled(text: str, declared: tuple[Deviation, ...], results: Iterable[Result]) -> tuple[str, tuple[Deviation, ...]]:
    """A deviations file with the words of each entry that names none, and the entries that match no result.

    An entry becomes several where it covers violations in several words. Comments and order stay.

    Raises:
        Refused: when the entries cannot be told apart in the text.
    """
    head, *blocks = re.split(r"(?m)(?=^\[\[)", text)
    entries = [bool(_HEADER.match(block)) for block in blocks]
    if not declared or sum(entries) != len(declared):
        raise refuse("deviations", sum(entries), f"{len(declared)} entries are not as many lines [[deviation]]",
                     "write each [[deviation]] on a line of its own")  # fmt: skip
    results, remaining = list(results), iter(declared)
    written, unknown = [head], []
    for block, is_entry in zip(blocks, entries, strict=True):
        if not is_entry:
            written.append(block)
            continue
        deviation = next(remaining)
        wanted = {} if deviation.says else _wanted(deviation, results)
        if not wanted:
            written.append(block)
            unknown += [] if deviation.says else [deviation]
            continue
        body, tail = _split(block)
        for forgiven, cases in wanted.items():
            written += [f"{_named(body, case, forgiven)}\n" for case in cases]
        written[-1] = written[-1][:-1] + tail
    return "".join(written), tuple(unknown)


def _wanted(deviation: Deviation, results: list[Result]) -> Mapping[Forgiven, tuple[str, ...]]:
    """The words that a deviation without any would forgive, and with which selectors: its own where all its cases are
    violated alike."""
    matched = [result for result in results if covers(deviation, result.item)]
    needs = {result.case: needed(result.parts) for result in matched if result.outcome == "violated"}
    if len(set(needs.values())) == 1 and len(needs) == len(matched):
        return dict.fromkeys(next(iter(needs.values())), (deviation.case,))
    found: dict[Forgiven, tuple[str, ...]] = {}
    for case, each in needs.items():
        for forgiven in each:
            found[forgiven] = (*found.get(forgiven, ()), _escaped(case))
    return found


def _split(block: str) -> tuple[str, str]:
    """The entry, and what stands after it: empty lines, and comments about what follows."""
    match = re.search(r"(?:^[ \t]*(?:#[^\n]*)?\n)+\Z", block, re.MULTILINE)
    return (block[: match.start()], block[match.start() :]) if match else (block, "")


def _named(body: str, case: str, forgiven: Forgiven) -> str:
    line = re.compile(r"^case[ \t]*=[^\n]*\n", re.MULTILINE)
    told = f"case = {json.dumps(case)}\n{forgiven.lines()}"
    return line.sub(lambda _: told, body, count=1)


def fill(file: Path, declared: tuple[Deviation, ...], runs: Iterable[Run]) -> tuple[int, tuple[Deviation, ...]]:
    """`filled`, in place: the number of entries that were given words, and those that match no run."""
    silent = sum(not each.says for each in declared)
    text, unknown = filled(file.read_text(encoding="utf-8"), declared, [r for run in runs for r in run.results])
    if silent > len(unknown):
        file.write_text(text, encoding="utf-8")
    return silent - len(unknown), unknown
