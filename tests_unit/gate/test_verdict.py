"""The verdict on small runs, worked out by hand: its word, each result, and each fault in its own words."""

import datetime
from dataclasses import replace
from itertools import permutations
from typing import Literal

import pytest

from contracts.court import record
from contracts.court.verdict import declared as as_declared
from contracts.court.verdict import expired, in_force, verdict
from contracts.spec import Abilities, Absence, Lack
from contracts.spec.records import (
    OUTCOMES,
    Baseline,
    Before,
    Choice,
    Deviation,
    Fate,
    Item,
    Kill,
    Outcome,
    Result,
    Run,
    Statement,
    Subject,
    Unfit,
    Verdict,
    Violation,
    Word,
)
from tests_unit.gate._recorded_run import UNTESTED, A, B, declared, recorded

TODAY = datetime.date(2026, 6, 15)
C, D = Item(id="TOPO-02", case="pp4"), Item(id="TOPO-02", case="pp8")


def judged(run: Run) -> Verdict:
    """The verdict on a run, which is the same on its record."""
    found, (again, _) = verdict(run, TODAY), record.read(record.write(run, TODAY))
    assert verdict(again, TODAY) == found
    return found


def said(run: Run) -> list[str]:
    """The faults of a run, each with its kind."""
    return [f"{each.kind}: {each.words}" for each in judged(run).faults]


def saying(run: Run, *words: str) -> Run:
    """The run with these words for its results, in their order."""
    return replace(run, results=tuple(replace(each, words=told) for each, told in zip(run.results, words, strict=True)))


def wrong(run: Run, *parts: Violation) -> Run:
    """The run with these parts for its first result."""
    first, *others = run.results
    return replace(run, results=(replace(first, words=parts[0].words, violations=parts), *others))


def killed(fate: Fate) -> Kill:
    return Kill(mutant="Forgets", of="TOPO-02", case="pp2", fate=fate, words="dp is 4")


STALE = "deviation: deviation TOPO-02[pp2-*] is stale: the contract now holds; remove it"
LATE = "deviation: deviation TOPO-02[pp2-*] expired on 2026-06-14; fix the fault, or give a new date and its reason"
TWICE = f"plan: {A} has 2 results"
STRANGE = f"plan: a result came for {B}, which was not planned"
BLIND = "suite: mutant Forgets of TOPO-02[pp2] survived: dp is 4"
CLAIMED = "claim: mine offers topology and declined each of its 1 cases"
LOST = f"baseline: {B} was judged in it, and is not planned now"
EARLIER = Baseline(of="it", judged=(A, B))
AGAIN = f"plan: {A} is planned 2 times"
ELSEWHERE = Item(id="TOPO-03", case="tp4")
BLUNT = (Unfit(id=A.id, words="it is blind"),)
EXITS: dict[Word, int] = {"conformant": 0, "violated": 1, "incomplete": 3, "broken": 4, "nothing ran": 5}


def since(run: Run, *judged: Item) -> Run:
    return replace(run, baseline=Baseline(of="it", judged=judged))


def on(device: Literal["cpu", "cuda"], run: Run) -> Run:
    return replace(run, header=replace(run.header, device=device))


BROKE = Baseline(of="it", judged=(A, B), before={str(A): Before(outcome="holds"), str(B): Before(outcome="broken")})
GONE = Baseline(of="reports/main", judged=(), missing="there is no record")
NONE = "no baseline: reports/main was to be the baseline, and there is no record: judge the default branch first"
GPU_ONLY = (declared("pp2-tp2", device="cuda"),)
WORDS: dict[str, tuple[Run, Word, list[str]]] = {
    "holds": (recorded((A, "holds")), "conformant", []),
    "violated": (recorded((A, "violated")), "violated", []),
    "broken": (recorded((A, "broken")), "broken", []),
    "not run": (recorded((A, "not run")), "incomplete", []),
    "untested": (recorded((UNTESTED, "untested")), "incomplete", []),
    "not offered": (recorded((A, "not offered"), offers=frozenset()), "nothing ran", []),
    "nothing": (recorded(), "nothing ran", []),
    "deviates alone": (recorded((A, "violated"), deviations=(declared(),)), "conformant", []),
    "violated before broken": (recorded((A, "broken"), (B, "violated")), "violated", []),
    "broken before not run": (recorded((A, "broken"), (B, "not run")), "broken", []),
    "a deviation": (recorded((A, "holds"), deviations=(declared(),)), "violated", [STALE]),
    "a deviation before broken": (
        recorded((A, "holds"), (UNTESTED, "broken"), deviations=(declared(),)), "violated", [STALE],
    ),
    "a late deviation": (recorded((A, "holds"), deviations=(declared(expires="2026-06-14"),)), "violated", [LATE]),
    "a claim": (recorded((A, "not offered")), "violated", [CLAIMED]),
    "a baseline": (replace(recorded((A, "holds")), baseline=EARLIER), "violated", [LOST]),
    "two results": (recorded((A, "holds"), (A, "holds")), "broken", [TWICE, AGAIN]),
    "two results of one item": (recorded((A, "holds"), (A, "holds"), plan=(A,)), "broken", [TWICE]),
    "a result of no plan": (recorded((A, "holds"), (B, "holds"), plan=(A,)), "broken", [STRANGE]),
    "a survivor": (replace(recorded((A, "holds")), kills=(killed("survived"),)), "broken", [BLIND]),
    "a mutant that was caught": (replace(recorded((A, "holds")), kills=(killed("killed"),)), "conformant", []),
    "a survivor of another contract": (
        replace(recorded((A, "holds")), kills=(killed("survived"),), unfit=(Unfit(id="TOPO-03", words="blind"),)),
        "broken", [BLIND],
    ),
    "plan before not run": (recorded((A, "not run"), (B, "holds"), plan=(A,)), "broken", [STRANGE]),
    # GATE-01: none of these is a pass, whatever else holds
    "one violated": (recorded((A, "holds"), (B, "violated")), "violated", []),
    "one broken": (recorded((A, "holds"), (B, "broken")), "broken", []),
    "one not run": (recorded((A, "holds"), (B, "not run")), "incomplete", []),
    "one untested": (recorded((A, "holds"), (UNTESTED, "untested")), "incomplete", []),
    "one not offered": (recorded((A, "holds"), (B, "not offered")), "conformant", []),
    "all not run": (recorded((A, "not run"), (B, "not run")), "incomplete", []),
    # GATE-02
    "absent": (recorded((A, "holds"), plan=(A, B)), "incomplete", []),
    "a failure that was tried again": (
        recorded((A, "holds"), (A, "violated"), (B, "holds"), plan=(A, B)), "violated", [TWICE],
    ),
    "planned twice": (recorded((A, "holds"), plan=(A, A)), "broken", [AGAIN]),
    # GATE-03
    "a late deviation that is still needed": (
        recorded((A, "violated"), deviations=(declared(expires="2026-06-14"),)), "violated", [LATE],
    ),
    "the last day of a deviation": (
        recorded((A, "violated"), deviations=(declared(expires="2026-06-15"),)), "conformant", [],
    ),
    "a deviation of what is broken": (recorded((A, "broken"), deviations=(declared(),)), "broken", []),
    "a deviation of one of two": (
        recorded((A, "violated"), (B, "violated"), deviations=(declared("pp2-tp2"),)), "violated", [],
    ),
    # GATE-07c
    "unfit, and another is violated": (
        replace(recorded((A, "holds"), (ELSEWHERE, "violated")), unfit=BLUNT), "violated", [],
    ),
    "unfit and not planned": (
        replace(recorded((A, "holds")), unfit=(Unfit(id="TOPO-09", words="it has no mutant"),)), "conformant", [],
    ),
    # GATE-10b
    "declared for a GPU, fails on a CPU": (on("cpu", recorded((A, "violated"), deviations=GPU_ONLY)), "violated", []),
    "declared for a GPU, holds on a CPU": (on("cpu", recorded((A, "holds"), deviations=GPU_ONLY)), "conformant", []),
    "declared for a GPU, declined on a CPU": (
        on("cpu", recorded((A, "not offered"), (B, "holds"), deviations=GPU_ONLY)), "conformant", [],
    ),
    "declared for another version": (
        recorded((A, "violated"), deviations=(declared(versions=("2.*",)),)), "violated", [],
    ),
    # GATE-11a
    "declared since the baseline": (
        since(recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),)), A, B), "conformant", [],
    ),
    "more than the baseline": (since(recorded((A, "holds"), (B, "not offered")), A), "conformant", []),
    "broken in the baseline and declined": (
        replace(recorded((A, "holds"), (B, "not offered")), baseline=BROKE),
        "violated", [f"baseline: {B} was broken in it, and is not offered now: some words"],
    ),
    "broken in the baseline and now": (replace(recorded((A, "holds"), (B, "broken")), baseline=BROKE), "broken", []),
    "broken in the baseline and mended": (
        replace(recorded((A, "holds"), (B, "holds")), baseline=BROKE), "conformant", [],
    ),
    "no baseline": (replace(recorded((A, "holds")), baseline=GONE), "incomplete", [NONE]),
    "violated without a baseline": (replace(recorded((A, "violated")), baseline=GONE), "violated", [NONE]),
    "absent, and the baseline had it": (since(recorded((A, "holds"), plan=(A, B)), A, B), "incomplete", []),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_the_verdict_follows_from_the_results_and_the_faults(name: str) -> None:
    run, word, faults = WORDS[name]
    assert (judged(run).word, judged(run).exit_code, said(run)) == (word, EXITS[word], faults)


def test_a_headline_has_the_stack_the_profile_and_the_count_of_each_outcome() -> None:
    found = judged(recorded((A, "holds"), (B, "holds"), (C, "not run"), (UNTESTED, "untested")))
    assert (found.subject, found.profile) == ("mine 3", "launch")
    assert found.counts == {**dict.fromkeys(OUTCOMES, 0), "holds": 2, "not run": 1, "untested": 1}
    assert [*found.counts] == [*OUTCOMES]
    assert [result.item for result in found.results] == [A, B, C, UNTESTED]


WORST_FIRST: tuple[Outcome, ...] = ("violated", "broken", "not run", "untested", "not offered", "deviates", "holds")


@pytest.mark.parametrize("pair", [*permutations(WORST_FIRST, 2)], ids=" ".join)
def test_of_two_results_the_worse_counts(pair: tuple[Outcome, Outcome]) -> None:
    (found,) = judged(recorded(*((A, each) for each in pair), plan=(A,))).results
    assert found.outcome == min(pair, key=WORST_FIRST.index)


def test_a_planned_item_without_a_result_is_not_run() -> None:
    first, second = judged(recorded((B, "holds"), plan=(A, B))).results
    assert (first.item, first.outcome, first.words) == (A, "not run", "planned, and no result came")
    assert (second.item, second.outcome) == (B, "holds")


def test_an_unfit_contract_is_not_judged_and_its_surviving_mutants_are_no_fault() -> None:
    run = recorded((A, "violated"), (UNTESTED, "holds"))
    unfit = (Unfit(id=A.id, words="it is blind"), Unfit(id="TOPO-09", words="it is not planned"))
    found = judged(replace(run, unfit=unfit, kills=(killed("survived"),)))
    assert [(each.outcome, each.words) for each in found.results] == [
        ("not run", "its contract is unfit: it is blind"), ("holds", ""),
    ]  # fmt: skip
    assert (found.unfit, found.faults, found.word) == ((A.id,), (), "incomplete")


@pytest.mark.parametrize(("day", "late"), [("2026-06-14", True), ("2026-06-15", False), ("2026-06-16", False)])
def test_a_deviation_is_valid_up_to_its_last_day(day: str, late: bool) -> None:
    entry = declared(expires=day)
    assert expired(entry, TODAY) == late
    assert in_force([entry], recorded().header, TODAY) == ([] if late else [entry])


@pytest.mark.parametrize(
    ("device", "here", "counts"),
    [("", "", True), ("", "cpu", True), ("cpu", "", True), ("cpu", "cpu", True), ("cpu", "cuda", False),
     ("cuda", "cpu", False)],
)  # fmt: skip
def test_a_deviation_is_used_only_on_its_device(device: str, here: str, counts: bool) -> None:
    entry = declared(device=device)  # type: ignore[arg-type]  # from a table
    header = replace(recorded().header, device=here)  # type: ignore[arg-type]
    assert in_force([entry], header, TODAY) == ([entry] if counts else [])


@pytest.mark.parametrize(
    ("versions", "device", "counts"),
    [((), "", True), (("3",), "", True), (("2", "3*"), "", True), (("2",), "", False), (("3",), "cuda", False),
     (("2",), "cpu", False)],
)  # fmt: skip
def test_a_deviation_is_used_only_for_its_versions(versions: tuple[str, ...], device: str, counts: bool) -> None:
    entry = declared(versions=versions, device=device)  # type: ignore[arg-type]
    assert in_force([entry], replace(recorded().header, device="cpu"), TODAY) == ([entry] if counts else [])


WQ = Violation(words="the gradient of wq differs: 1", tensor="wq")
WK = Violation(words="the gradient of wk differs: 2", tensor="wk")
WV = Violation(words="the gradient of wv differs: 3", tensor="wv")
DP, EP, ETP, CP = (Violation(words=f"{axis} is 4") for axis in ("dp", "ep", "etp", "cp"))
BY = "declared by mesh until 2026-12-31: the mesh is rebuilt in May (#7)"


def violated(*parts: Violation) -> Result:
    return Result(id=A.id, case=A.case, outcome="violated", words="in short", violations=parts)


def test_a_declared_violation_deviates_and_names_its_owner() -> None:
    found = as_declared(violated(DP), [declared(says="dp is #"), declared(says="ep is #")])
    assert (found.outcome, found.words) == ("deviates", f"in short\n{BY}")
    found = as_declared(violated(DP, EP), [declared(says="dp is #"), declared(says="ep is #")])
    assert (found.outcome, found.words) == ("deviates", f"in short\n{BY}\n{BY}")


@pytest.mark.parametrize(
    "entry", [declared(case="pp4"), declared(id="TOPO-03"), declared(says="ep is #"), declared(says="")]
)
def test_a_deviation_with_other_words_does_not_forgive_a_violation(entry: Deviation) -> None:
    assert as_declared(violated(DP), [entry]) == violated(DP)


def test_a_partly_declared_violation_is_violated_and_lists_the_undeclared_part() -> None:
    found = as_declared(violated(DP, EP, CP), [declared(says="ep is #")])
    assert (found.outcome, found.words) == (
        "violated", f"not declared: dp is 4; cp is 4\nbeside what is {BY}\nin all: in short",
    )  # fmt: skip
    found = as_declared(violated(WQ, WK, WV), [declared(says=DIFFERS, tensors=("wq", "wk"))])
    assert (found.outcome, found.words.partition("\n")[0]) == ("violated", f"not declared: {WV.words}")


@pytest.mark.parametrize("outcome", [each for each in OUTCOMES if each != "violated"])
def test_a_deviation_forgives_violations_only(outcome: Outcome) -> None:
    result = Result(id=A.id, case=A.case, outcome=outcome, words="some words")
    assert as_declared(result, [declared()]) == result


MATCHES_NOTHING = "matches nothing in the plan; remove it or correct its selector"
DIFFERS = "the gradient of * differs"


def added(run: Run, *items: str) -> Run:
    """The run some of whose items came after its frozen law."""
    return replace(run, plan=replace(run.plan, added=items))


ENTRIES: dict[str, tuple[Run, Deviation, str]] = {  # a run with an entry, and what is wrong with the entry
    "forgives all that fails": (recorded((A, "violated"), (B, "violated")), declared(), ""),
    "no words": (
        recorded((A, "holds")), declared(says=""),
        "names no words, so it forgives nothing; `rankproof deviations` writes them from a record",
    ),
    "no case": (recorded((A, "holds")), declared("tp9"), MATCHES_NOTHING),
    "no contract": (recorded((A, "holds")), declared(id="TOPO-99"), MATCHES_NOTHING),
    "no case, and one contract is not counted": (
        added(recorded((A, "holds"), (B, "holds")), str(A)), declared("tp9"), MATCHES_NOTHING,
    ),
    "another version": (recorded((A, "holds")), declared(versions=("2",)), ""),
    "another version, and expired": (
        recorded((A, "holds")), declared(versions=("2",), expires="2026-06-14"), LATE.partition("[pp2-*] ")[2],
    ),
    "a contract outside": (recorded((A, "holds")), declared(id="ARGV-01"), ""),
    "another contract outside": (recorded((A, "holds"), cut=("TOPO-99",)), declared("tp9"), MATCHES_NOTHING),
    "a case outside": (recorded((A, "holds"), cut=("TOPO-02[pp4]",)), declared("pp4"), ""),
    "a case outside of another contract": (
        recorded((A, "holds"), cut=("TOPO-03[pp4]",)), declared("pp4"), MATCHES_NOTHING,
    ),
    "another case outside": (recorded((A, "holds"), cut=("TOPO-02[pp8]",)), declared("pp4"), MATCHES_NOTHING),
    "a recipe of a case outside": (recorded((A, "holds"), cut=("TOPO-02[pp4]",)), declared("pp4@pairs"), ""),
    "a recipe outside": (recorded((A, "holds"), cut=("TOPO-02[pp4@pairs]",)), declared("pp4@pairs"), ""),
    "another recipe outside": (
        recorded((A, "holds"), cut=("TOPO-02[pp4@pairs]",)), declared("pp4@dense"), MATCHES_NOTHING,
    ),
    "other words": (
        wrong(recorded((A, "violated")), DP, EP), declared(says="cp is #"), "matches none of the words: dp is 4",
    ),
    "tensors that it does not name": (
        wrong(recorded((A, "violated")), DP, WQ, WK), declared(says=DIFFERS),
        "names no tensors, and tensors are compared: add `tensors`, such as 'wq'",
    ),
    "other tensors": (
        wrong(recorded((A, "violated")), WQ), declared(says=DIFFERS, tensors=("wk",)),
        "matches none of the words: the gradient of wq differs: 1",
    ),
    "tensors with other words": (
        wrong(recorded((A, "violated")), WQ), declared(says="the weight of * differs"),
        "matches none of the words: the gradient of wq differs: 1",
    ),
    "holds": (recorded((A, "holds"), (B, "holds")), declared(), "is stale: the contract now holds; remove it"),
    "one holds and one is not offered": (
        recorded((A, "not offered"), (B, "holds")), declared(), "is stale: the contract now holds; remove it",
    ),
    "very many hold": (
        recorded(*((Item(id="TOPO-02", case=f"pp2-{n}"), "holds") for n in range(300))), declared(),
        "is stale: the contract now holds; remove it",
    ),
    "is not offered": (
        recorded((A, "not offered"), (C, "holds")), declared(),
        "is stale: its case is not offered here (some words); remove it, or give its `device` or `versions`",
    ),
    "one holds and one was not run": (recorded((A, "holds"), (B, "not run")), declared(), ""),
    "broken": (recorded((A, "broken")), declared(), ""),
    "one fails and one holds": (
        recorded((A, "violated"), (B, "holds")), declared(),
        "is wider than what fails: pp2-ep2 holds; narrow its selector",
    ),
    "one fails, one holds, one is not offered": (
        recorded((A, "violated"), (B, "not offered"), (C, "holds")), declared("pp*"),
        "is wider than what fails: pp2-ep2 is not offered, pp4 holds; narrow its selector",
    ),
    "one fails and one was not run": (recorded((A, "violated"), (B, "not run")), declared(), ""),
    "more tensors than differ": (
        wrong(recorded((A, "violated")), WQ), declared(says=DIFFERS, tensors=("wq", "wk", "wv")),
        "is wider than what fails: no tensor wk, wv differs; narrow `tensors`",
    ),
    "fails in other words too": (
        saying(recorded((A, "violated"), (B, "violated"), (C, "violated")), "some words", "dp is 4", "ep is 4"),
        declared("pp*"),
        "is wider than what fails: pp2-ep2, pp4 in other words; narrow its selector",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_each_fault_of_a_deviation_has_its_own_message(name: str) -> None:
    run, entry, wrong_with = ENTRIES[name]
    fault = f"deviation: deviation {entry.id}[{entry.case}] {wrong_with}"
    assert said(replace(run, deviations=(entry,))) == ([fault] if wrong_with else [])


@pytest.mark.parametrize(
    ("entries", "most"),
    [
        ((declared(says="dp is #"),), 0),
        ((declared(says="dp is #"), declared(says="ep is #")), 0),
        ((declared(says="dp is #"), declared(says="dp is 4"), declared(says="ep is #")), 2),
        ((declared(says="dp is #"), declared(says="dp is 4"), declared(says="is 4")), 3),
        ((declared(says="dp is #"), declared(says="dp is 4", versions=("2",)), declared(says="ep is #")), 0),
    ],
)
def test_several_deviations_are_counted_with_what_they_forgive(entries: tuple[Deviation, ...], most: int) -> None:
    run = replace(wrong(recorded((A, "violated")), DP, EP), deviations=entries)
    covered = f"deviation: {A} is covered by {most} deviations; keep one"
    assert [each for each in said(run) if "keep one" in each] == ([covered] if most else [])


@pytest.mark.parametrize("outcome", [each for each in OUTCOMES if each != "violated"])
def test_several_deviations_of_an_item_that_is_not_violated_are_not_too_many(outcome: Outcome) -> None:
    run = recorded((A, outcome), deviations=(declared(says="#"), declared(says="some words"), declared(says="words")))
    assert not [each for each in said(run) if "keep one" in each]


@pytest.mark.parametrize(
    ("later", "faults"), [((), [STALE]), ((str(A),), [STALE]), ((str(A), str(B)), []), ((str(C),), [STALE])]
)
def test_a_deviation_of_a_contract_that_is_not_counted_is_no_fault(later: tuple[str, ...], faults: list[str]) -> None:
    run = added(recorded((A, "holds"), (B, "holds"), (C, "holds"), deviations=(declared(),)), *later)
    assert said(run) == faults
    assert [str(each.item) for each in judged(run).added] == [*later]
    assert len(judged(run).results) == 3 - len(later)


ON_PAIRS = Item(id="TOPO-02", case="pp2@pairs")


@pytest.mark.parametrize(
    ("case", "outcome", "stands"),
    [
        ("pp2", "holds", True), ("pp2", "violated", True), ("pp2@hybrid", "holds", True),
        ("pp2@dense", "holds", False), ("pp2@letters", "holds", False), ("pp1", "holds", False),
        ("pp4", "holds", False), ("pp2", "not offered", False), ("pp2", "not run", False), ("pp2", "broken", False),
    ],
)  # fmt: skip
def test_a_baseline_case_is_kept_only_by_a_richer_recipe_of_the_same_case(
    case: str, outcome: Outcome, stands: bool
) -> None:
    run = recorded((Item(id="TOPO-02", case=case), outcome), (A, "holds"))
    lost = f"baseline: {ON_PAIRS} was judged in it, and is not planned now"
    assert said(replace(run, baseline=Baseline(of="it", judged=(ON_PAIRS,)))) == ([] if stands else [lost])


def test_an_unknown_recipe_of_a_case_in_a_baseline_is_lost() -> None:
    run = recorded((Item(id="TOPO-02", case="pp2"), "holds"))
    of_none = Item(id="TOPO-02", case="pp2@letters")
    assert said(replace(run, baseline=Baseline(of="it", judged=(of_none,)))) == [
        f"baseline: {of_none} was judged in it, and is not planned now"
    ]


@pytest.mark.parametrize(
    ("outcome", "fault", "words"),
    [
        ("not offered", f"baseline: {B} was judged in it, and is not offered now: some words", "some words"),
        ("not run", "", "some words; it was judged in it"),
        ("untested", "", "some words; it was judged in it"),
        ("broken", "", "some words"),
        ("violated", "", "some words"),
        ("holds", "", ""),
    ],
)
def test_a_case_that_the_baseline_judged_and_this_run_did_not_is_a_fault(
    outcome: Outcome, fault: str, words: str
) -> None:
    run = replace(recorded((A, "holds"), (B, outcome)), baseline=EARLIER)
    assert said(run) == ([fault] if fault else [])
    assert [each.words for each in judged(run).results] == ["", words]
    assert [each.words for each in judged(replace(run, baseline=None)).results] == ["", words.split(";", maxsplit=1)[0]]


LEFT = Absence(features=frozenset({"recurrent"}), kind="stack", reason="it has no such block")
NARROW = Absence(features=frozenset({"float64"}), kind="stack", reason="it trains in float32")


def able(run: Run, *lacks: Absence, claims: bool = True) -> Run:
    subject = replace(run.header.subject, abilities=Abilities(has=frozenset({"experts"}), lacks=lacks, claims=claims))
    return replace(run, header=replace(run.header, subject=subject))


def offering(run: Run, *questions: str) -> Run:
    subject: Subject = replace(run.header.subject, offers=frozenset(questions))
    return replace(run, header=replace(run.header, subject=subject))


def claims(number: int, question: str = "topology") -> str:
    return f"claim: mine offers {question} and declined each of its {number} cases"


def asking(run: Run, **asks: tuple[str, ...]) -> Run:
    """The run whose contracts, named with `_` for `-`, ask these questions."""
    told = {id.replace("_", "-"): Statement(promise="…", source="law", asks=each) for id, each in asks.items()}
    return replace(run, plan=replace(run.plan, promises=told))


TWO = recorded((A, "not offered"), (B, "not offered"))
LACKED = f"mine: {LEFT}"


def of_kind(lack: Lack, run: Run) -> Run:
    """The run whose last item is declined for a lack of this kind."""
    *others, last = run.results
    return replace(run, results=(*others, replace(last, lack=lack)))


def ruled_out(run: Run, *items: Item) -> Run:
    choices = tuple(Choice(item=str(each), instead=(), kind="stack", why="it has none") for each in items)
    return replace(run, plan=replace(run.plan, choices=choices))


MANY = able(recorded(*((Item(id="TOPO-02", case=f"pp{n}"), "not offered") for n in range(300))), LEFT)
CLAIMS: dict[str, tuple[Run, list[str]]] = {
    "each declined": (TWO, [claims(2)]),
    "one answered": (recorded((A, "not offered"), (B, "holds")), []),
    "one not run": (recorded((A, "not offered"), (B, "not run")), []),
    "not offered at all": (offering(TWO), []),
    "nothing asks it": (offering(recorded((A, "holds")), "topology", "launch"), []),
    "two questions, in their order": (
        asking(offering(TWO, "topology", "launch"), TOPO_02=("topology", "launch")),
        [claims(2, "launch"), claims(2, "topology")],
    ),
    "a version that was never tried": (able(TWO, claims=False), []),
    "abilities without a word of it": (able(TWO), [claims(2)]),
    "each for a declared lack": (saying(able(TWO, LEFT), LACKED, LACKED), []),
    "each for the reason of a declared lack": (
        saying(able(TWO, LEFT), *2 * [f"mine 1.0: {LEFT.reason}"]), [],
    ),
    "one for a declared lack": (saying(able(TWO, LEFT), LACKED, "mine: it is Monday"), [claims(2)]),
    "one for a declared lack, one for its shape": (
        of_kind("case", saying(able(TWO, LEFT), LACKED, "mine: one rank")), [],
    ),
    "one for a declared lack, one for the adapter's": (
        of_kind("adapter", saying(able(TWO, LEFT), LACKED, "mine: not yet")), [claims(2)],
    ),
    "each of very many for its shape": (
        replace(MANY, results=tuple(replace(each, lack="case") for each in MANY.results)), [claims(300)],
    ),
    "each for its shape": (of_kind("case", able(recorded((A, "not offered")), LEFT)), [claims(1)]),
    "each ruled out by the plan": (ruled_out(able(TWO, LEFT), A, B), []),
    "one ruled out by the plan": (ruled_out(able(TWO, LEFT), A), [claims(2)]),
    "ruled out by the plan of a stack without abilities": (ruled_out(TWO, A, B), [claims(2)]),
    "for want of another": (
        saying(asking(TWO, TOPO_02=("topology", "launch")), *2 * ["mine does not offer launch"]), [],
    ),
    "for want of another, and once by itself": (
        saying(asking(TWO, TOPO_02=("topology", "launch")), "mine does not offer launch", "mine: no"), [claims(1)],
    ),
    "as if for want of another, where it offers more": (
        offering(saying(TWO, *2 * ["mine does not offer topology"]), "topology", "launch"), [claims(2)],
    ),
    "as if for want of another": (saying(TWO, *2 * ["mine does not offer topology"]), [claims(2)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_an_offered_question_that_is_declined_in_every_case_is_a_fault(name: str) -> None:
    run, faults = CLAIMS[name]
    assert said(run) == faults


def test_a_stack_that_declines_everything_for_declared_lacks_is_not_judged() -> None:
    assert judged(CLAIMS["each for a declared lack"][0]).word == "nothing ran"


def claimed(run: Run, *items: Item) -> Run:
    return replace(run, plan=replace(run.plan, claimed=tuple(map(str, items))))


NEEDS = f"claim: mine declares every feature that {A} needs, and declined it: "
ONE = saying(recorded((A, "not offered"), (B, "holds")), "mine: no", "")
IN_FLOAT64 = saying(ONE, f"mine: {NARROW.reason}", "")
DECLARED: dict[str, tuple[Run, list[str]]] = {
    "declined": (claimed(able(ONE, LEFT), A), [f"{NEEDS}mine: no"]),
    "without abilities": (claimed(ONE, A), [f"{NEEDS}mine: no"]),
    "not claimed": (claimed(able(ONE, LEFT), B), []),
    "answered": (claimed(able(recorded((A, "holds")), LEFT), A), []),
    "not run": (claimed(able(recorded((A, "not run")), LEFT), A), []),
    "not offered at all": (offering(claimed(able(ONE, LEFT), A)), []),
    "offered beside others": (
        offering(claimed(able(ONE, LEFT), A), "launch", "topology", "train"), [f"{NEEDS}mine: no"],
    ),
    "offered in part": (asking(claimed(able(ONE, LEFT), A), TOPO_02=("topology", "launch")), []),
    "for want of float64": (claimed(able(IN_FLOAT64, NARROW), A), []),
    "for want of float64, which it does not lack": (
        claimed(able(IN_FLOAT64, LEFT), A), [f"{NEEDS}mine: {NARROW.reason}"],
    ),
    "asked in float32": (
        claimed(able(replace(IN_FLOAT64, results=(replace(IN_FLOAT64.results[0], dtype="float32"),
                                                  IN_FLOAT64.results[1])), NARROW), A),
        [f"{NEEDS}mine: {NARROW.reason}"],
    ),
    "a version that was never tried": (claimed(able(ONE, LEFT, claims=False), A), []),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARED)
def test_declining_a_case_whose_features_are_declared_is_a_fault(name: str) -> None:
    run, faults = DECLARED[name]
    assert said(run) == faults


@pytest.mark.parametrize(
    ("fate", "words"),
    [("survived", "survived: dp is 4"), ("wrong words", "was caught with other words: dp is 4"),
     ("crashed", "crashed: dp is 4"), ("killed", ""), ("void", "")],
)  # fmt: skip
def test_a_surviving_mutant_in_the_record_is_a_fault_of_the_suite(fate: Fate, words: str) -> None:
    run = replace(recorded((A, "holds")), kills=(killed(fate),))
    assert said(run) == ([f"suite: mutant Forgets of TOPO-02[pp2] {words}"] if words else [])
