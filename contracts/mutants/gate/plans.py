"""Verdict code whose plans differ from what their profiles name."""

from dataclasses import replace

from contracts.contract import LAW
from contracts.court.court import Court
from contracts.mutants._support.broken import broken


def _ranks(item):
    return LAW.contracts[item.id].ranks(item.case) if item.id in LAW.contracts else 1


@broken(Court, "plan", "GATE-02b[several-ranks]: dist does not plan")
def plans_what_the_machine_can_do(former, self, profile):
    """Cuts the tier to the available ranks under the same name, so nobody misses the larger cases."""
    plan = former(self, profile)
    return replace(plan, items=tuple(item for item in plan.items if _ranks(item) <= 4))


@broken(Court, "plan", "GATE-02b[four-ranks]: is neither planned by dist4 nor listed as outside")
def cuts_without_a_word(former, self, profile):
    """Lists what is outside by contract, so the omitted cases of a partly planned contract are not shown."""
    plan = former(self, profile)
    return replace(plan, outside=tuple(each for each in plan.outside if "[" not in each))


@broken(Court, "plan", "GATE-02b[four-ranks]: dist4 plans")
def plans_what_four_ranks_cannot_judge(plan, self, profile):
    """Over-correction: larger cases stay in the plan, so four ranks never suffice for a pass."""
    return plan(self, "dist" if profile == "dist4" else profile)


@broken(Court, "plan", "GATE-02b[four-ranks]: dist4 plans")
def plans_what_takes_an_hour(former, self, profile):
    """Plans a cold compile for every merge."""
    plan = former(self, profile)
    every = former(self, "dist" if profile == "dist4" else profile)
    slow = tuple(item for item in every.items if item.id in LAW.contracts and LAW.contracts[item.id].slow)
    return replace(plan, items=(*plan.items, *(item for item in slow if _ranks(item) <= 4)))


@broken(Court, "plan", "GATE-02b[two-words]: does not plan")
def takes_the_last_word(plan, self, profile):
    """Only the last of several words counts, as with a repeated option."""
    return plan(self, profile.rpartition(",")[2])


@broken(Court, "plan", "GATE-02b[one-process]: does not plan")
def plans_what_has_a_check(former, self, profile):
    """Leaves contracts without a check out of the plan, so that the tier can pass."""
    plan = former(self, profile)
    without = tuple(item.id for item in plan.items if item.id in LAW.untested)
    items = tuple(item for item in plan.items if item.id not in without)
    return replace(plan, items=items, outside=(*plan.outside, *without))
