"""GATE: a contract that fails the suite's own test judges no stack, and all other contracts do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts.checks.gate._recorded_run import TODAY, A, B, recorded
from contracts.contract import contract
from contracts.spec.records import Fate, Item, Kill, Outcome, Result, Run, Unfit, Word
from contracts.spec.stack import Court

C = Item(id="TOPO-03", case="tp4")


def _said(outcome: Outcome, item: Item = A) -> Result:
    return Result(id=item.id, case=item.case, outcome=outcome, words="dp is 4, expected 2")


def _kill(fate: Fate) -> Kill:
    return Kill(mutant="ForgetsPipeline", of=A.id, case=A.case, fate=fate, words="holds: no words")


Found = tuple[tuple[Result, ...], tuple[Kill, ...], tuple[str, ...]]
SOUND = _said("holds", C)
FOUND: dict[str, tuple[Found, tuple[str, ...]]] = {  # a self-test, and why TOPO-02 is unfit; empty where fit
    "all-proved": (((_said("holds"), SOUND), (_kill("killed"),), ()), ()),
    "fails-on-the-reference": (
        ((_said("holds", B), _said("violated"), SOUND), (_kill("killed"),), ()),
        ("on the reference TOPO-02[pp2-tp2] is violated", "dp is 4, expected 2"),
    ),
    "breaks-on-the-reference": (((_said("broken"), SOUND), (_kill("killed"),), ()), ("TOPO-02[pp2-tp2] is broken",)),
    "mutant-survived": (
        ((_said("holds"), SOUND), (_kill("killed"), _kill("survived")), ()), ("ForgetsPipeline in pp2-tp2 survived",)
    ),
    "mutant-crashed": (((_said("holds"), SOUND), (_kill("crashed"),), ()), ("ForgetsPipeline in pp2-tp2 crashed",)),
    "other-words": (((_said("holds"), SOUND), (_kill("wrong words"),), ()), ("caught for other words: holds: no",)),
    "no-mutant": (((_said("holds"), SOUND), (), (A.id,)), ("it has no mutant",)),
    "mutant-not-asked": (((_said("holds"), SOUND), (_kill("void"),), ()), ()),
    "not-run-on-the-reference": (((_said("not run"), SOUND), (_kill("void"),), ()), ()),
    "not-offered-by-the-reference": (((_said("not offered"), SOUND), (_kill("killed"),), ()), ()),
}  # fmt: skip


@contract("GATE-07b", asks="unfit", cases=FOUND, source="law: GATE-07")
def a_contract_that_fails_its_own_test_is_unfit(court: Court, found: Found, words: tuple[str, ...]) -> None:
    """A contract that fails on the correct stack, misses a mutant or has no mutant is unfit, and the reason is stated.
    A contract that could not be asked is not unfit.

    Fitness depends on the machine: a rounding error of 3e-16 on one CPU, divided by a gradient that is exactly zero,
    read as a fault of the stack. A parser that is not installed says nothing against the contract that needs it.
    """
    unfit = court.unfit(*found)
    expected = {A.id} if words else set()
    assert set(unfit) == expected, f"the unfit contracts are {sorted(unfit)}, expected {sorted(expected)}"
    missing = [each for each in words if each not in unfit[A.id]]
    assert not missing, f"the reason is {unfit[A.id]!r}, without {missing}"


UNFIT = (Unfit(id=A.id, words="on the reference TOPO-02[pp2-tp2] is violated: dp is 4, expected 2"),)


def _given(*came: tuple[Item, Outcome], unfit: tuple[Unfit, ...] = UNFIT, kills: tuple[Kill, ...] = ()) -> Run:
    return replace(recorded(*came), unfit=unfit, kills=kills)


JUDGED: dict[str, tuple[Run, Word, int, Mapping[Item, Outcome]]] = {
    "others-hold": (_given((A, "not run"), (C, "holds")), "incomplete", 3, {A: "not run", C: "holds"}),
    "others-are-violated": (_given((A, "not run"), (C, "violated")), "violated", 1, {A: "not run", C: "violated"}),
    "it-says-holds": (_given((A, "holds"), (C, "holds")), "incomplete", 3, {A: "not run", C: "holds"}),
    "it-says-violated": (_given((A, "violated"), (C, "holds")), "incomplete", 3, {A: "not run", C: "holds"}),
    "each-of-its-cases": (
        _given((A, "holds"), (B, "holds"), (C, "holds")), "incomplete", 3,
        {A: "not run", B: "not run", C: "holds"},
    ),
    "its-mutant-is-recorded": (
        _given((A, "not run"), (C, "holds"), kills=(_kill("survived"),)), "incomplete", 3,
        {A: "not run", C: "holds"},
    ),
    "not-in-the-plan": (
        _given((A, "holds"), (C, "holds"), unfit=(Unfit(id="TOPO-09", words="it has no mutant"),)), "conformant", 0,
        {A: "holds", C: "holds"},
    ),
}  # fmt: skip


@contract("GATE-07c", asks=("verdict", "report"), cases=JUDGED, source="law: GATE-07")
def an_unfit_contract_silences_itself_alone(
    court: Court, run: Run, word: Word, exit_code: int, outcomes: Mapping[Item, Outcome]
) -> None:
    """The items of an unfit contract are not run, the verdict names the contract, and all other contracts are judged.

    A false alarm in one case of 2,218 ended the gate on every machine with that CPU, and nothing else was judged. A
    gate that gives no verdict is switched off; a gate that forgives is believed.
    """
    judged = court.verdict(run, TODAY)
    seen = {result.item: result.outcome for result in judged.results}
    told = {str(item): outcome for item, outcome in seen.items()}
    assert seen == outcomes, f"{told}, expected { ({str(item): each for item, each in outcomes.items()}) }"
    assert judged.word == word, f"verdict is {judged.word}, expected {word}"
    assert judged.exit_code == exit_code, f"exit code is {judged.exit_code}, expected {exit_code} for {word}"
    named = "1 contract is unfit: TOPO-02" in court.report(run, TODAY, "terminal")
    assert named == (A in outcomes and outcomes[A] == "not run"), f"the report says that TOPO-02 is unfit: {named}"
