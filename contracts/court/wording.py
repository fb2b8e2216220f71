"""What every form of a report shows: the headline, the details of a result, the command that judges it again."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

from contracts.contract import LAW
from contracts.court import repository, sources
from contracts.court.causes import Cause
from contracts.spec.records import OUTCOMES, Item, Result, Run, Verdict

_KEPT_OPTIONS = ("--at", "--python", "--with", "--deviations", "--deadline")
"""Options of the recorded command without which an item is judged in another way."""
_WITH = re.compile(r"--with (?P<who>[\w=.:-]+)$")
_RAISED_AT = re.compile(r" raised \w+ on (?P<question>\w+) at (?P<file>[^\n:]+):(?P<line>\d+): ")


def headline(verdict: Verdict) -> str:
    """The verdict in one line: the stack, the profile, and the number of each outcome."""
    counts = ", ".join(f"{verdict.counts[outcome]} {outcome}" for outcome in OUTCOMES if verdict.counts[outcome])
    faults = f", {len(verdict.faults)} faults of the run" if verdict.faults else ""
    told = f"{verdict.word.upper()}: {verdict.subject}, profile {verdict.profile} ({counts or 'no result'}{faults})"
    if not verdict.unfit:
        return told
    number = "1 contract is" if len(verdict.unfit) == 1 else f"{len(verdict.unfit)} contracts are"
    return f"{told}; {number} unfit: {', '.join(verdict.unfit)}"


def judged_code(run: Run) -> list[str]:
    """What was judged, a line for each process that answered: where its code lies, of which commit, and what ran it."""
    found = []
    for each in run.header.subject.answering:
        changed = ", with changes" if each.dirty else ""
        commit = f"commit {each.commit[:12]}{changed}" if each.commit else "of no checkout"
        torch = f"torch {each.torch}, " if each.torch else ""
        found.append(
            f"{each.module} {each.version}, {commit}, files {each.digest[:12]}, {each.path}; "
            f"{torch}Python {each.python} ({each.process})"
        )
    return found


def device_line(run: Run) -> str:
    """On which device the stack was asked, and in how many items it was seen to allocate there; empty on the CPU."""
    if run.header.device != "cuda":
        return ""
    seen = sum(result.device == "cuda" for result in run.results)
    ranks = f"; {run.header.ranks} ranks over {run.header.backend}" if run.header.backend else ""
    ranks += ", through host memory: NCCL is not judged" if run.header.backend == "staged" else ""
    return f"Device: {run.header.device}, with memory allocated there for {seen} of {len(run.results)} results{ranks}"


def rerun(run: Run, result: Result) -> str:
    """The command that judges one item again, as it was judged; with whom it lacked, where nobody answered."""
    words = rerun_words(run)
    if result.outcome == "not run" and (lacked := _WITH.search(result.words)) and lacked["who"] not in words:
        words += ["--with", lacked["who"]]
    return shlex.join([*words, "--profile", str(result.item), *ranks_words(result.item, run.header.ranks)])


def rerun_words(run: Run) -> list[str]:
    """The beginning of every command that judges again: the stack, who assisted, which deviations."""
    if run.header.command[1:2] == ("judge",):
        return ["rankproof", "judge", run.header.subject.origin, *_liked(run.header.command)]
    device = ["--device", "cuda"] if run.header.device == "cuda" else []
    return ["rankproof", "check", "--stack", run.header.subject.origin, *device, *_kept(run.header.command)]


def ranks_words(item: Item, judged: int = 1) -> list[str]:
    """`--ranks N` for an item that several ranks judge: as many as judged it, if the contract is not read here."""
    contract = LAW.contracts.get(item.id)
    if contract is None:
        return ["--ranks", str(judged)] if judged > 1 else []
    if contract.tier != "dist" or item.case not in contract.asked:
        return []
    return ["--ranks", str(max(2, contract.ranks(item.case)))]


def _liked(command: Sequence[str]) -> Iterator[str]:
    """The traces that a judged one is compared with, and its deviations."""
    for at, word in enumerate(command):
        if word in ("--like", "--deviations"):
            yield from command[at : at + 2 + (word == "--like")]


def _kept(command: Sequence[str]) -> Iterator[str]:
    for word, following in pairwise([*command, ""]):
        option, given, value = word.replace("--rankproof-", "--", 1).partition("=")  # pytest's own begin so
        if option in _KEPT_OPTIONS and (given or following):
            yield from (option, value if given else following)


def law_lines(run: Run, verdict: Verdict, limit: int | None = None) -> list[str]:
    """The effect of a frozen set of contracts: those added later, removed or reworded since."""
    plan = run.plan
    if not plan.law:
        return []
    counts = Counter(result.outcome for result in verdict.added)
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    lines = [f"Law {plan.law}; added later, not counted: {len(verdict.added)}{f' ({told})' if told else ''}"]
    red = [result for result in verdict.added if result.outcome in ("violated", "broken")]
    lines += [f"added later, not counted: {each.item} is {each.outcome}: {each.words}" for each in red]
    besides = (("in it, and removed since", plan.gone), ("reworded since", plan.reworded))
    lines += [f"{words}: {', '.join(named)}" for words, named in besides if named]
    left = 0 if limit is None else len(lines) - limit
    return [*lines[:limit], f"… and {left} lines more"] if left > 0 else lines


def kill_line(run: Run) -> str:
    """How the suite fared against its own mutants, in one line."""
    fates = Counter(kill.fate for kill in run.kills)
    told = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    return f"Self-test of the suite: {counted(len(run.kills), 'mutant')} ({told})"


def details(run: Run, result: Result) -> list[tuple[str, str]]:
    """What a reader needs about one result: the values, the contract's statement and source, how to see it again."""
    statement = run.plan.promises.get(result.id)
    found = [("got", result.words)]
    if result.rank is not None:
        found.append(("first rank", str(result.rank)))
    if statement is not None:
        found += [("contract", statement.promise), ("source", "\n".join(sources.explained(statement.source)))]
    found += answered_by(run, result)
    return [*found, ("rerun", rerun(run, result)), ("explain", f"rankproof explain {result.id}")]


def answered_by(run: Run, result: Result) -> list[tuple[str, str]]:
    """Who answered each question and how, and where that code stands, if the record knows."""
    subject = run.header.subject
    own = f"{subject.name} {subject.version} ("
    return [
        (f"{question} by", f"{answer}, {place}" if (place := _own_place(run, question, answer, own)) else answer)
        for question, answer in result.answered.items()
    ]


def _own_place(run: Run, question: str, answer: str, own: str) -> str:
    return run.header.subject.places.get(question, "") if answer.startswith(own) else ""


def place(run: Run, result: Result) -> tuple[str, int] | None:
    """The file and the line of the stack's code that raised or answered, where the record knows; a file of the
    repository is relative to its root, as CI wants it."""
    raised = _RAISED_AT.search(result.words)
    if raised and (file := Path(raised["file"])).is_relative_to(repository.root()):
        return repository.told(file), int(raised["line"])
    statement = run.plan.promises.get(result.id)
    asked = [raised["question"]] if raised else [*result.answered, *(statement.asks if statement else ())]
    for question in reversed(asked):
        file_name, _, line = run.header.subject.places.get(question, "").rpartition(":")
        if file_name and line.isdecimal():
            return file_name, int(line)
    return (raised["file"], int(raised["line"])) if raised else None


def by_id(results: Iterable[Result]) -> list[tuple[str, list[Result]]]:
    """Results of one contract together, in plan order."""
    return [(id, list(group)) for id, group in groupby(results, key=lambda result: result.id)]


def families(ids: Iterable[str]) -> str:
    """How many of each family, in the order of the plan: `PAT 24, NAME 16`. A single case counts as one."""
    return ", ".join(f"{family} {count}" for family, count in Counter(map(family_of, ids)).items())


def family_of(id: str) -> str:
    return id.partition("-")[0]


def counted(number: int, thing: str, things: str = "") -> str:
    """`1 item`, `2 items`."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"


def items(cause: Cause, limit: int | None = None) -> str:
    """The items of a cause, contract by contract: `TOPO-02[pp2, pp4] TOPO-02a[tp2]`; those over the limit are
    counted."""
    told = []
    for id, group in by_id(cause.results if limit is None else cause.results[:limit]):
        cases = ", ".join(result.case for result in group if result.case)
        told.append(f"{id}[{cases}]" if cases else id)
    left = 0 if limit is None else len(cause.results) - limit
    return " ".join(told) + (f" and {left} more" if left > 0 else "")
