"""GATE: what a stack declares that it can build decides on which recipes it is asked, and binds it."""

from __future__ import annotations

from dataclasses import replace

from contracts.checks.gate._recorded_run import TODAY, A, B, recorded
from contracts.contract import contract
from contracts.spec.abilities import FEATURES, Abilities, Absence
from contracts.spec.lacks import Lack
from contracts.spec.records import Run, Word
from contracts.spec.stack import Court


def _without(*features: str, kind: Lack = "stack") -> Abilities:
    """A stack with every feature but these."""
    lacks = tuple(Absence(features=frozenset({each}), kind=kind, reason="nobody wrote it") for each in features)
    return Abilities(has=frozenset(FEATURES) - {*features}, lacks=lacks)


MUON = "OPT-01b[muon]"
LADDERS: dict[str, tuple[Abilities, tuple[str, ...], str]] = {  # the rungs of OPT-01b[muon], and why not as written
    "every-feature": (_without(), ("muon", "muon@dense"), ""),
    "no-recurrent-block": (_without("recurrent"), ("muon@hybrid", "muon@dense"), "recurrent: nobody wrote it"),
    "nor-mamba": (_without("recurrent", "mamba"), ("muon@pairs", "muon@dense"), "nobody wrote it"),
    "no-experts-either": (_without("recurrent", "mamba", "experts"), ("muon@dense",), "nobody wrote it"),
    "not-with-another-optimizer": (
        replace(
            _without("recurrent"),
            lacks=(
                *_without("recurrent").lacks,
                Absence(features=frozenset({"mamba", "adamw"}), kind="adapter", reason="they were not tried"),
            ),
        ),
        ("muon@hybrid", "muon@dense"),
        "recurrent: nobody wrote it",
    ),
    "nothing-of-it": (_without("attention"), ("muon@dense",), "attention: nobody wrote it"),
    "nothing-declared": (Abilities(has=frozenset()), ("muon@dense",), "its abilities say nothing about it"),
}


@contract("GATE-12a", asks="plan_for", cases=LADDERS, source="law: GATE-12")
def abilities_choose_the_recipe_in_the_plan(
    court: Court, abilities: Abilities, asked: tuple[str, ...], why: str
) -> None:
    """A stack is asked a case on the richest recipe that its declared abilities allow, and always on the leanest. Where
    that is not the recipe of the case, the plan says so, with the reason.

    A suite that asks what its own reference can build judges little of any other stack, and one that chooses while it
    runs can choose what holds.
    """
    plan = court.plan_for("OPT-01b", abilities)
    found = tuple(item.case for item in plan.items if item.case.partition("@")[0] == "muon")
    assert found == asked, f"{MUON} is asked as {', '.join(found) or 'nothing'}, expected {', '.join(asked)}"
    reasons = [each.why for each in plan.choices if each.item == MUON]
    assert len(reasons) == (asked[0] != "muon"), f"{len(reasons)} reasons are given for not asking {MUON}"
    assert all(why in each for each in reasons), f"{MUON} is not asked because {reasons}, expected {why!r}"
    ruled_out = {each.item for each in plan.choices}
    for name in asked:
        item = f"OPT-01b[{name}]"
        words = f"{item} is claimed: {item in plan.claimed}, ruled out: {item in ruled_out}"
        assert (item in plan.claimed) is not (item in ruled_out), words


def _claiming(run: Run, *claimed: str) -> Run:
    return replace(run, plan=replace(run.plan, claimed=claimed))


_DECLINES = recorded((A, "not offered"), (B, "holds"))
BOUND: dict[str, tuple[Run, Word, str]] = {
    "declines-what-it-declares": (_claiming(_DECLINES, str(A), str(B)), "violated", f"declares all that {A} needs"),
    "declines-something-else": (_claiming(_DECLINES, str(B)), "conformant", ""),
    "keeps-it": (_claiming(recorded((A, "holds"), (B, "holds")), str(A), str(B)), "conformant", ""),
    "does-not-answer-the-question": (
        _claiming(recorded((A, "not offered"), (B, "holds"), offers=frozenset()), str(A)), "conformant", "",
    ),
}  # fmt: skip


@contract("GATE-12b", asks="verdict", cases=BOUND, source="law: GATE-12")
def a_declared_ability_that_is_refused_is_a_violation(court: Court, run: Run, word: Word, words: str) -> None:
    """A stack that declares all that an item needs and then declines it is violated, and the verdict names the item.

    Abilities choose what is asked. If they could be claimed and then declined, a stack would look wider than it is.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}"
    said = [fault.words for fault in judged.faults]
    assert bool(said) is bool(words), f"faults are {said}, expected {words or 'none'!r}"
    assert all(words in each for each in said), f"no fault says {words!r}; faults: {said}"
