"""A stack that is being put under test question by question: what holds so far, and what to answer next."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from contracts.contract import LAW, Contract, Law, Tier
from contracts.court import profiles
from contracts.court.judge import DEADLINE_S
from contracts.harness.gate import Gate
from contracts.spec import Abilities, Party, abilities_of
from contracts.spec.records import Item, Plan, Result, Run, Verdict

PROFILE = "what it offers"
ROWS = 8  # of the table of what to answer next
AT_ONCE = 3  # questions that are proposed together


def probed(
    party: Party, origin: str, *, deadline_s: float = DEADLINE_S, ended: Callable[[Result], None] = lambda result: None
) -> tuple[Run, Verdict]:
    """Judge, in this process and without assistants, each contract that asks for nothing but what the party offers.

    `ended` is called with each result as it comes.
    """
    gate = Gate(
        subject=party,
        origin=origin,
        assistants=(),
        profile=PROFILE,
        plan=plan_of(party.offers, abilities=abilities_of(party)),
        deadline_s=deadline_s,
    )
    for item in gate.plan.items:
        result = gate.judge(item)
        gate.add(result)
        ended(result)
    judged = gate.close()
    return gate.run(), judged


def plan_of(offers: Collection[str], law: Law = LAW, abilities: Abilities | None = None) -> Plan:
    """The cases of one process that these questions suffice for, on the recipes that the abilities allow."""
    whole = profiles.plan(law, "unit", abilities)
    asked = {id for id in whole.promises if id in law.contracts and _suffices(law.contracts[id], offers)}
    return replace(
        whole,
        items=tuple(item for item in whole.items if item.id in asked),
        outside=(),
        promises={id: statement for id, statement in whole.promises.items() if id in asked},
    )


def _suffices(contract: Contract, offers: Collection[str]) -> bool:
    return set(contract.asks) <= set(offers)


@dataclass(frozen=True, kw_only=True)
class Unlocked:
    """Questions that are not answered yet, and how many more contracts of each tier could be judged if they were."""

    questions: tuple[str, ...]
    promises: Counter[Tier]


def unlocked(offers: Collection[str], law: Law = LAW) -> list[Unlocked]:
    """What to answer next: the sets of questions that unlock most contracts for each question in them.

    A set that contains a better one is left out: it is proposed again when that one is answered.
    """
    lacking = {c.id: frozenset(c.asks) - set(offers) for c in law.contracts.values()}
    gained = {
        together: Counter(law.contracts[id].tier for id, lacks in lacking.items() if lacks and lacks <= together)
        for together in lacking.values()
        if 0 < len(together) <= AT_ONCE
    }
    best: list[frozenset[str]] = []
    for together in sorted(gained, key=lambda each: (-gained[each].total() / len(each), sorted(each))):
        if not any(better < together for better in best):
            best.append(together)
    return [Unlocked(questions=tuple(sorted(each)), promises=gained[each]) for each in best[:ROWS]]


def of_ranks(offers: Collection[str], law: Law = LAW) -> list[str]:
    """The contracts of several ranks that these questions suffice for."""
    return [c.id for c in law.contracts.values() if c.tier == "dist" and _suffices(c, offers)]


def first_of_each(results: Iterable[Result]) -> list[tuple[Result, list[Item]]]:
    """The first result of each contract, and the other cases that ended alike."""
    found = []
    for _, group in groupby(results, key=lambda result: result.id):
        first, *others = group
        found.append((first, [other.item for other in others]))
    return found
