"""The verdict on a run. Pure arithmetic: the same run on the same day has the same verdict, here or offline.

A violation outweighs a broken suite, which outweighs what was not run. "Nothing ran" is for a run that had nothing to
judge. A run that had something to judge and did not is incomplete: exit code 3, not pytest's 5, which many scripts
forgive.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from contracts.court.deviations import covers, forgives, unused
from contracts.court.fitness import MISSED
from contracts.spec import RUNGS, public
from contracts.spec.records import (
    OUTCOMES,
    Baseline,
    Deviation,
    Fault,
    Header,
    Item,
    Outcome,
    Plan,
    Result,
    Run,
    Subject,
    Verdict,
    Violation,
    Word,
)

JUDGED: frozenset[Outcome] = frozenset({"holds", "violated", "deviates"})
OWED: frozenset[Outcome] = JUDGED | {"broken"}
"""What a baseline demands: also what was broken there, or a change could decline exactly what main has broken."""
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
    later = {*run.plan.added}
    faults += _deviation_faults(run, results, today)
    valid = in_force(run.deviations, run.header, today)
    results = [declared(result, valid) for result in results]
    if run.baseline is not None:
        results, lost = _compared(run, run.baseline, results)
        faults += lost
    added = tuple(result for result in results if str(result.item) in later)
    results = [result for result in results if str(result.item) not in later]
    faults += _claim_faults(run, results)
    faults += _suite_faults(run)
    if run.cut_off:
        came = f"{len(run.results)} of {len(run.plan.items)} planned items have a result"
        faults.insert(0, Fault(kind="cut off", words=f"the run did not finish: {came}, and its record has no footer"))
    counts = Counter(result.outcome for result in results)
    return Verdict(
        word="incomplete" if run.cut_off else _word(results, faults),
        profile=run.header.profile,
        subject=told(run.header.subject),
        results=tuple(results),
        faults=tuple(faults),
        counts={outcome: counts[outcome] for outcome in OUTCOMES},
        unfit=tuple(unfit),
        added=added,
    )


def told(subject: Subject) -> str:
    """A stack with its version and, where that does not name it, the commit of its code."""
    commits = {each.commit[:9] + ("+dirty" if each.dirty else "") for each in subject.answering if each.commit}
    unnamed = [each for each in sorted(commits) if each[:9] not in subject.version]
    return f"{subject.name} {subject.version}" + (f" at {', '.join(unnamed)}" if unnamed else "")


def expired(deviation: Deviation, today: datetime.date) -> bool:
    """A deviation counts up to and including its last day."""
    return datetime.date.fromisoformat(deviation.expires) < today


def in_force(deviations: Iterable[Deviation], header: Header, today: datetime.date) -> list[Deviation]:
    """The deviations that count on a day in a run."""
    return [each for each in deviations if not expired(each, today) and not _elsewhere(each, header)]


def _elsewhere(deviation: Deviation, header: Header) -> bool:
    """Whether a deviation is about another device than that of the run, or about other versions of the stack."""
    named = {header.subject.version, public(header.subject.version)}  # of a checkout, the commit may be left out
    if deviation.versions and not any(fnmatchcase(name, each) for name in named for each in deviation.versions):
        return True
    return bool(deviation.device and header.device) and deviation.device != header.device


def not_judged(item: Item, why: str) -> Result:
    """What is said of an item whose contract failed the suite's own test."""
    return Result(id=item.id, case=item.case, outcome="not run", words=f"its contract is unfit: {why}")


def declared(result: Result, deviations: Iterable[Deviation]) -> Result:
    """A violation that its owner declared is a deviation, if everything that is wrong there is declared. Otherwise it
    stays a violation, whose words begin with what is not. An error is never covered."""
    if result.outcome != "violated":
        return result
    about = [deviation for deviation in deviations if covers(deviation, result.item)]
    used = [each for each in about if any(forgives(each, part) for part in result.parts)]
    if not used:
        return result
    beyond = [part.words for part in result.parts if not any(forgives(each, part) for each in used)]
    by = "\n".join(f"declared by {d.owner} until {d.expires}: {d.reason} ({d.issue})" for d in used)
    if not beyond:
        return replace(result, outcome="deviates", words=f"{result.words}\n{by}")
    more = f"; and {len(beyond) - _TOLD} more" if len(beyond) > _TOLD else ""
    told = "; ".join(beyond[:_TOLD]) + more
    return replace(result, words=f"not declared: {told}\nbeside what is {by}\nin all: {result.words}")


_TOLD = 3  # of what is not declared


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
    later = {*run.plan.added}
    for deviation in run.deviations:
        about = [result for result in results if covers(deviation, result.item)]
        if about and all(str(result.item) in later for result in about):
            continue  # it forgives what is not counted
        entry = f"deviation {deviation.id}[{deviation.case}]"
        if expired(deviation, today):
            words.append(f"{entry} expired on {deviation.expires}; fix the fault, or give a new date and its reason")
        elif not _elsewhere(deviation, run.header):
            wrong = _wrong_with(deviation, results, run.plan)
            words += [f"{entry} {wrong}"] if wrong else []
    for result in results:
        covering = [deviation for deviation in run.deviations if covers(deviation, result.item)]
        covering = [each for each in covering if not _elsewhere(each, run.header)]
        parts = result.parts if result.outcome == "violated" else ()
        most = max((sum(forgives(each, part) for each in covering) for part in parts), default=0)
        if most > 1:
            words.append(f"{result.item} is covered by {most} deviations; keep one")
    return [Fault(kind="deviation", words=each) for each in words]


def _wrong_with(deviation: Deviation, results: list[Result], plan: Plan) -> str:
    """Why a deviation that has not expired must be changed or removed; empty where it forgives what it says."""
    matched = [result for result in results if covers(deviation, result.item)]
    failing = [result for result in matched if result.outcome == "violated"]
    kept = [result for result in matched if result.outcome in ("holds", "not offered")]
    parts = [part for result in failing for part in result.parts]
    forgiven = [part for part in parts if forgives(deviation, part)]
    if not deviation.says:
        return "names no words, so it forgives nothing; `rankproof deviations` writes them from a record"
    if not matched:
        return (
            "" if _lies_outside(deviation, plan) else "matches nothing in the plan; remove it or correct its selector"
        )
    if failing and not forgiven:
        meant = [part for part in parts if part.tensor and not deviation.tensors and _says(deviation, part)]
        if meant:
            return f"names no tensors, and tensors are compared: add `tensors`, such as {meant[0].tensor!r}"
        return f"matches none of the words: {parts[0].words}"
    if not failing and kept and len(kept) == len(matched):
        if any(result.outcome == "holds" for result in kept):
            return "is stale: the contract now holds; remove it"
        return (
            f"is stale: its case is not offered here ({kept[0].words}); remove it, or give its `device` or `versions`"
        )
    if failing and kept:
        told = ", ".join(f"{each.case} {'holds' if each.outcome == 'holds' else 'is not offered'}" for each in kept)
        return f"is wider than what fails: {told}; narrow its selector"
    if failing and (idle := unused(deviation, forgiven)):
        return f"is wider than what fails: no tensor {', '.join(idle)} differs; narrow `tensors`"
    alien = [result.case for result in failing if not any(forgives(deviation, part) for part in result.parts)]
    return f"is wider than what fails: {', '.join(alien)} in other words; narrow its selector" if alien else ""


def _says(deviation: Deviation, part: Violation) -> bool:
    return forgives(deviation, replace(part, tensor=""))


def _lies_outside(deviation: Deviation, plan: Plan) -> bool:
    """Whether a deviation is about what the profile leaves outside: a whole contract, or cases of one.

    A case by itself stands for all of its recipes, which a deviation names after the `@`.
    """
    items = (Item(id=id, case=case.removesuffix("]")) for id, _, case in (each.partition("[") for each in plan.outside))
    above = replace(deviation, case=deviation.case.partition("@")[0])
    return any(
        item.id == deviation.id and (not item.case or covers(deviation, item) or covers(above, item)) for item in items
    )


def _richer(result: Result, item: Item) -> bool:
    """Whether a result judges the case of an item on a richer recipe: a stack has gained an ability."""
    rungs = ("", *RUNGS)
    same = result.item.above == item.above and result.outcome in JUDGED
    return same and {result.item.rung, item.rung} <= {*rungs} and rungs.index(result.item.rung) < rungs.index(item.rung)


def _compared(run: Run, baseline: Baseline, results: list[Result]) -> tuple[list[Result], list[Fault]]:
    """What an earlier run judged and this one does not. What is not offered or not planned any more is a fault; what
    was not run says so in its own words, because that may be this machine's doing."""
    if baseline.missing:
        words = f"{baseline.of} was to be the baseline, and {baseline.missing}: judge the default branch first"
        return results, [Fault(kind="no baseline", words=words)]
    now = {result.item: result for result in results}
    lost = []
    for item in baseline.judged:
        before = baseline.before.get(str(item))
        was = f"was {'broken' if before and before.outcome == 'broken' else 'judged'} in {baseline.of}"
        result = now.get(item)
        if result is None and any(_richer(each, item) for each in results):
            continue
        if result is None:
            lost.append(f"{item} {was}, and is not planned now")
        elif result.outcome == "not offered":
            lost.append(f"{item} {was}, and is not offered now: {result.words}")
        elif result.outcome in ("not run", "untested"):
            now[item] = replace(result, words=f"{result.words}; it {was}")
    return [now[result.item] for result in results], [Fault(kind="baseline", words=each) for each in lost]


def _claim_faults(run: Run, results: list[Result]) -> list[Fault]:
    """The questions that the stack claims and then declines in every case, for more than it declared to lack, and the
    items that its declared abilities cover and that it then declines. A version on which its adapter was never tried
    claims nothing."""
    abilities = run.header.subject.abilities
    if abilities is not None and not abilities.claims:
        return []
    found = []
    for question in sorted(run.header.subject.offers):
        asked = [r for r in results if question in _asks(run, r.id) and not _for_want_of_another(run, r)]
        if asked and all(result.outcome == "not offered" for result in asked) and not _foretold(run, asked):
            words = f"{run.header.subject.name} offers {question} and declined each of its {len(asked)} cases"
            found.append(Fault(kind="claim", words=words))
    claimed = {*run.plan.claimed}
    # in which precision a check asks is nothing that a plan can know
    narrow = tuple(each.reason for each in abilities.lacks if "float64" in each.features) if abilities else ()
    for each in results:
        offered = {*_asks(run, each.id)} <= run.header.subject.offers
        too_wide = not each.dtype and each.words.endswith(narrow)
        if each.outcome == "not offered" and offered and str(each.item) in claimed and not too_wide:
            name = run.header.subject.name
            words = f"{name} declares every feature that {each.item} needs, and declined it: {each.words}"
            found.append(Fault(kind="claim", words=words))
    return found


def _for_want_of_another(run: Run, declined: Result) -> bool:
    """Whether it was never put to the stack, because it also asks what nobody answers: that says nothing of a claim."""
    subject = run.header.subject
    offered = {*_asks(run, declined.id)} <= subject.offers
    return not offered and declined.words.startswith(f"{subject.name} does not offer ")


def _foretold(run: Run, declined: list[Result]) -> bool:
    """Whether each of these was declined for a lack that the stack declared, or because the case itself does not fit
    it, and one at least for a declared lack."""
    abilities = run.header.subject.abilities
    if abilities is None:
        return False
    ruled_out = {choice.item for choice in run.plan.choices}
    lacks = tuple(each.reason for each in abilities.lacks)
    others = [each for each in declined if str(each.item) not in ruled_out and not each.words.endswith(lacks)]
    return len(others) < len(declined) and all(each.lack == "case" for each in others)


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
    yield "violated", "violated" in outcomes or bool({"deviation", "claim", "baseline"} & faults)
    yield "broken", "broken" in outcomes or bool({"plan", "suite"} & faults)
    yield "incomplete", bool({"not run", "untested"} & outcomes) or "no baseline" in faults
    yield "nothing ran", not outcomes & JUDGED
