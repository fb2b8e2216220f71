"""The verdict on a run. Pure arithmetic: the same run on the same day has the same verdict, here or offline.

A violation outweighs a broken suite, which outweighs what was not run. "Nothing ran" is for a run that had nothing to
judge. A run that had something to judge and did not is incomplete: exit code 3, not pytest's 5, which many scripts
forgive.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from contracts.court.fitness import MISSED
from contracts.spec.records import OUTCOMES, Deviation, Fault, Item, Outcome, Plan, Result, Run, Verdict, Word

JUDGED: frozenset[Outcome] = frozenset({"holds", "violated", "deviates"})
_WORST_FIRST: tuple[Outcome, ...] = (
    "violated", "broken", "not run", "untested", "not offered", "deviates", "holds",
)  # fmt: skip


def verdict(run: Run, today: datetime.date) -> Verdict:
    """Judge a run against its plan and the declared deviations."""
    results, faults = _by_plan(run)
    planned = {item.id for item in run.plan.items}
    unfit = {each.id: each.words for each in run.unfit if each.id in planned}
    # No result of an unfit contract is believed, whether it says holds or violated.
    results = [not_judged(result.item, unfit[result.id]) if result.id in unfit else result for result in results]
    faults += _deviation_faults(run, results, today)
    valid = [deviation for deviation in run.deviations if not expired(deviation, today)]
    results = [_declared(result, valid) for result in results]
    faults += _claim_faults(run, results)
    faults += _suite_faults(run)
    counts = Counter(result.outcome for result in results)
    return Verdict(
        word=_word(results, faults),
        profile=run.header.profile,
        subject=f"{run.header.subject.name} {run.header.subject.version}",
        results=tuple(results),
        faults=tuple(faults),
        counts={outcome: counts[outcome] for outcome in OUTCOMES},
        unfit=tuple(unfit),
    )


def expired(deviation: Deviation, today: datetime.date) -> bool:
    """A deviation counts up to and including its last day."""
    return datetime.date.fromisoformat(deviation.expires) < today


def covers(deviation: Deviation, item: Item) -> bool:
    """Whether a deviation is about an item."""
    return deviation.id == item.id and fnmatchcase(item.case, deviation.case)


def not_judged(item: Item, why: str) -> Result:
    """What is said of an item whose contract failed the suite's own test."""
    return Result(id=item.id, case=item.case, outcome="not run", words=f"its contract is unfit: {why}")


def _declared(result: Result, deviations: Iterable[Deviation]) -> Result:
    """A violation that its owner declared is a deviation. An error is never covered."""
    if result.outcome != "violated":
        return result
    for deviation in deviations:
        if covers(deviation, result.item):
            words = f"{result.words}\ndeclared by {deviation.owner} until {deviation.expires}: {deviation.reason}"
            return replace(result, outcome="deviates", words=f"{words} ({deviation.issue})")
    return result


def _by_plan(run: Run) -> tuple[list[Result], list[Fault]]:
    came: dict[Item, list[Result]] = {}
    for result in run.results:
        came.setdefault(result.item, []).append(result)
    results, faults = [], []
    for item in run.plan.items:
        answers = came.pop(item, [])
        if not answers:
            words = "planned, and no result came"
            results.append(Result(id=item.id, case=item.case, outcome="not run", words=words))
            continue
        if len(answers) > 1:
            faults.append(Fault(kind="plan", words=f"{item} has {len(answers)} results"))
        results.append(min(answers, key=lambda result: _WORST_FIRST.index(result.outcome)))
    faults += [Fault(kind="plan", words=f"a result came for {item}, which was not planned") for item in came]
    faults += [Fault(kind="plan", words=f"{item} is planned {n} times") for item, n in Counter(run.plan.items).items()
               if n > 1]  # fmt: skip
    return results, faults


def _deviation_faults(run: Run, results: list[Result], today: datetime.date) -> list[Fault]:
    words = []
    for deviation in run.deviations:
        entry = f"deviation {deviation.id}[{deviation.case}]"
        matched = [result for result in results if covers(deviation, result.item)]
        failing = [result for result in matched if result.outcome == "violated"]
        holding = [result for result in matched if result.outcome == "holds"]
        if expired(deviation, today):
            words.append(f"{entry} expired on {deviation.expires}; mend it or argue for a new date")
        elif not matched and not _lies_outside(deviation, run.plan):
            words.append(f"{entry} matches nothing in the plan; remove it or correct its selector")
        elif holding and not failing:
            words.append(f"{entry} is stale: the contract now holds; remove it")
        elif holding:
            kept = ", ".join(result.case for result in holding)
            words.append(f"{entry} is wider than what fails: {kept} hold; narrow its selector")
    for item in run.plan.items:
        covering = [deviation for deviation in run.deviations if covers(deviation, item)]
        if len(covering) > 1:
            words.append(f"{item} is covered by {len(covering)} deviations; keep one")
    return [Fault(kind="deviation", words=each) for each in words]


def _lies_outside(deviation: Deviation, plan: Plan) -> bool:
    """Whether a deviation is about what the profile leaves outside: a whole contract, or cases of one."""
    items = (Item(id=id, case=case.removesuffix("]")) for id, _, case in (each.partition("[") for each in plan.outside))
    return any(item.id == deviation.id and (not item.case or covers(deviation, item)) for item in items)


def _claim_faults(run: Run, results: list[Result]) -> list[Fault]:
    """The questions that the stack claims and then declines in every case, and the items that its declared abilities
    cover and that it then declines."""
    found = []
    for question in sorted(run.header.subject.offers):
        asked = [r for r in results if question in _asks(run, r.id)]
        if asked and all(result.outcome == "not offered" for result in asked):
            words = f"{run.header.subject.name} claims {question} and declined each of its {len(asked)} cases"
            found.append(Fault(kind="claim", words=words))
    claimed = {*run.plan.claimed}
    for each in results:
        offered = {*_asks(run, each.id)} <= run.header.subject.offers
        if each.outcome == "not offered" and offered and str(each.item) in claimed:
            words = f"{run.header.subject.name} declares all that {each.item} needs and declined it: {each.words}"
            found.append(Fault(kind="claim", words=words))
    return found


def _suite_faults(run: Run) -> list[Fault]:
    """The recorded mutants that survived although their contract judged the stack. A suite that cannot say no must not
    judge."""
    unfit = {each.id for each in run.unfit}
    return [
        Fault(kind="suite", words=f"mutant {kill.mutant} of {kill.of}[{kill.case}] {MISSED[kill.fate]}: {kill.words}")
        for kill in run.kills
        if kill.fate in MISSED and kill.of not in unfit
    ]


def _asks(run: Run, contract_id: str) -> tuple[str, ...]:
    statement = run.plan.promises.get(contract_id)
    return statement.asks if statement else ()


def _word(results: list[Result], faults: list[Fault]) -> Word:
    outcomes = {result.outcome for result in results}
    for word, found in _precedence(outcomes, {fault.kind for fault in faults}):
        if found:
            return word
    return "conformant"


def _precedence(outcomes: set[Outcome], faults: set[str]) -> Iterator[tuple[Word, bool]]:
    yield "violated", "violated" in outcomes or bool({"deviation", "claim"} & faults)
    yield "broken", "broken" in outcomes or bool({"plan", "suite"} & faults)
    yield "incomplete", bool({"not run", "untested"} & outcomes)
    yield "nothing ran", not outcomes & JUDGED
