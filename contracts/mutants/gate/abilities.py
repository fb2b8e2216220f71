"""Plans that choose other recipes than the abilities say, and verdicts that let a stack decline what it declares."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.abilities import FEATURES, Abilities
from contracts.spec.records import Plan, Run, Verdict


@mutant(of="GATE-12a", case="no-recurrent-block", says="is asked as muon, muon@dense, expected muon@hybrid, muon@dense")
class AsksWhatTheReferenceBuilds(Court):
    """Plans as for a stack with every feature, so that others decline nearly everything."""

    def plan_for(self, profile: str, abilities: Abilities) -> Plan:
        return super().plan_for(profile, Abilities(has=frozenset(FEATURES)))


@mutant(of="GATE-12a", case="nor-mamba", says="is asked as muon@dense, expected muon@pairs, muon@dense")
class AsksTheLeanestAlone(Court):
    """Over-correction: everybody is asked about a dense transformer, and experts are judged nowhere."""

    def plan_for(self, profile: str, abilities: Abilities) -> Plan:
        plan = super().plan_for(profile, abilities)
        return replace(plan, items=tuple(each for each in plan.items if each.case.endswith("@dense")))


@mutant(of="GATE-12a", case="every-feature", says="is asked as muon, expected muon, muon@dense")
class AsksTheRichestAlone(Court):
    """A stack that gains an ability is no longer asked on the recipe that it was asked on before."""

    def plan_for(self, profile: str, abilities: Abilities) -> Plan:
        plan = super().plan_for(profile, abilities)
        richest = {each.above: each for each in reversed(plan.items)}
        return replace(plan, items=tuple(each for each in plan.items if richest[each.above] == each))


@mutant(of="GATE-12a", case="no-experts-either", says="0 reasons are given for not asking OPT-01b[muon]")
class ChoosesWithoutAWord(Court):
    """Asks leaner recipes and does not say so, so that nobody misses the others."""

    def plan_for(self, profile: str, abilities: Abilities) -> Plan:
        return replace(super().plan_for(profile, abilities), choices=())


@mutant(of="GATE-12a", case="nothing-declared", says="is claimed: True, ruled out: True")
class ClaimsWhatItRulesOut(Court):
    """Every planned item counts as claimed."""

    def plan_for(self, profile: str, abilities: Abilities) -> Plan:
        plan = super().plan_for(profile, abilities)
        return replace(plan, claimed=tuple(str(item) for item in plan.items))


@mutant(of="GATE-12b", case="declines-what-it-declares", says="verdict is conformant, expected violated")
class BelievesTheDecline(Court):
    """An item that is not offered is no fault, whatever was declared."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return super().verdict(replace(run, plan=replace(run.plan, claimed=())), today)


@mutant(of="GATE-12b", case="declines-something-else", says="verdict is violated, expected conformant")
class ForbidsEveryDecline(Court):
    """Over-correction: a stack with abilities may decline nothing, not even what it declares to lack."""

    def verdict(self, run: Run, today: str) -> Verdict:
        every = tuple(str(item) for item in run.plan.items)
        return super().verdict(replace(run, plan=replace(run.plan, claimed=every)), today)
