"""GATE: what a profile plans. A verdict is about its plan; a plan smaller than its name passes cases that nobody ran.

The expected plan is counted here from the law itself, contract by contract and case by case.
"""

from __future__ import annotations

from collections.abc import Iterator

from contracts.contract import LAW, Contract, Untested, contract
from contracts.spec.records import Item
from contracts.spec.stack import Court

EVERY = 1 << 20  # ranks
PROFILES: dict[str, tuple[str, str, int, bool]] = {
    "one-process": ("unit", "unit", EVERY, True),
    "one-gpu": ("gpu", "gpu", EVERY, True),
    "several-ranks": ("dist", "dist", EVERY, True),
    "four-ranks": ("dist4", "dist", 4, False),  # without slow cases
    "two-words": ("dist4,gpu", "dist gpu", 4, True),
}
"""A profile, its tiers, the most ranks of a case, and whether contracts without a check are planned too."""
FOR_FOUR, FOR_EIGHT = "PAR-01a[tp2-sp-ep2]", "PAR-01a[tp2-sp-ep2-fsdp2]"


@contract("GATE-02b", asks="plan", cases=PROFILES, source="law: GATE-01, GATE-02")
def a_profile_plans_what_it_names_and_lists_the_rest(
    court: Court, profile: str, tiers: str, ranks: int, untested: bool
) -> None:
    """A profile plans every case that it names once, and no other case. It lists every other item as outside, including
    the omitted cases of a contract that is planned in part.

    A tier reduced to what the machine can do demands less, so it needs its own name, and the reader of the verdict must
    see what was cut. A planned case that did not run is red, but a case silently left out of the plan would be green.
    """
    plan = court.plan(profile)
    outside = set(plan.outside)
    wanted = [item for entry, item, needs in _cases() if _named(entry, tiers, needs, ranks, untested)]
    planned, named = set(plan.items), set(wanted)  # thousands of items: looking each up in a list took four seconds
    lacking = [str(item) for item in wanted if item not in planned]
    assert not lacking, f"{profile} does not plan {', '.join(lacking[:3])} ({len(lacking)} of {len(wanted)} it names)"
    more = [str(item) for item in plan.items if item not in named]
    assert not more, f"{profile} plans {', '.join(more[:3])}, which it does not name"
    assert len(plan.items) == len(wanted), f"{profile} plans {len(plan.items)} items, expected {len(wanted)}, each once"
    for _, item, _ in _cases():
        listed = item.id in outside or str(item) in outside
        assert listed or item in named, f"{item} is neither planned by {profile} nor listed as outside"
        assert not (listed and item in named), f"{item} is planned by {profile} and listed as outside"
    if profile == "dist4":
        assert {FOR_FOUR, FOR_EIGHT} & {str(item) for item in plan.items} == {FOR_FOUR}


def _cases() -> Iterator[tuple[Contract | Untested, Item, int]]:
    """Every case of every contract, as it was written and on its leanest recipe, and how many ranks judge it."""
    for id, entry in LAW.contracts.items():
        names = dict.fromkeys(name for case in entry.cases for name in (case, entry.leanest(case)))
        yield from ((entry, Item(id=id, case=name), entry.ranks(name)) for name in names)
    yield from ((entry, Item(id=id), 1) for id, entry in LAW.untested.items())


def _named(entry: Contract | Untested, tiers: str, needs: int, ranks: int, untested: bool) -> bool:
    """Whether a profile of these tiers, with cases of at most `ranks` ranks, names a case."""
    if entry.tier not in tiers.split():
        return False
    cut = entry.tier == "dist" and ranks < EVERY
    if not isinstance(entry, Contract):
        return untested and not cut
    return needs <= ranks and not (cut and entry.slow)
