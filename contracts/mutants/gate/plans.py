"""Verdict code whose plans differ from what their profiles name."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import LAW, mutant
from contracts.court.court import Court
from contracts.spec.records import Item, Plan


def _ranks(item: Item) -> int:
    return LAW.contracts[item.id].ranks(item.case) if item.id in LAW.contracts else 1


@mutant(of="GATE-02b", case="several-ranks", says="dist does not plan")
class PlansWhatTheMachineCanDo(Court):
    """Cuts the tier to the available ranks under the same name, so nobody misses the larger cases."""

    def plan(self, profile: str) -> Plan:
        plan = super().plan(profile)
        return replace(plan, items=tuple(item for item in plan.items if _ranks(item) <= 4))


@mutant(of="GATE-02b", case="four-ranks", says="is neither planned by dist4 nor listed as outside")
class CutsWithoutAWord(Court):
    """Lists what is outside by contract, so the omitted cases of a partly planned contract are not shown."""

    def plan(self, profile: str) -> Plan:
        plan = super().plan(profile)
        return replace(plan, outside=tuple(each for each in plan.outside if "[" not in each))


@mutant(of="GATE-02b", case="four-ranks", says="dist4 plans")
class PlansWhatFourRanksCannotJudge(Court):
    """Over-correction: larger cases stay in the plan, so four ranks never suffice for a pass."""

    def plan(self, profile: str) -> Plan:
        return super().plan("dist" if profile == "dist4" else profile)


@mutant(of="GATE-02b", case="four-ranks", says="dist4 plans")
class PlansWhatTakesAnHour(Court):
    """Plans a cold compile for every merge."""

    def plan(self, profile: str) -> Plan:
        plan = super().plan(profile)
        every = super().plan("dist" if profile == "dist4" else profile)
        slow = tuple(item for item in every.items if item.id in LAW.contracts and LAW.contracts[item.id].slow)
        return replace(plan, items=(*plan.items, *(item for item in slow if _ranks(item) <= 4)))


@mutant(of="GATE-02b", case="two-words", says="does not plan")
class TakesTheLastWord(Court):
    """Only the last of several words counts, as with a repeated option."""

    def plan(self, profile: str) -> Plan:
        return super().plan(profile.rpartition(",")[2])


@mutant(of="GATE-02b", case="one-process", says="does not plan")
class PlansWhatHasACheck(Court):
    """Leaves contracts without a check out of the plan, so that the tier can pass."""

    def plan(self, profile: str) -> Plan:
        plan = super().plan(profile)
        without = tuple(item.id for item in plan.items if item.id in LAW.untested)
        items = tuple(item for item in plan.items if item.id not in without)
        return replace(plan, items=items, outside=(*plan.outside, *without))
