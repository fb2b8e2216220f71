"""Plans that choose other recipes than the abilities say, and verdicts that let a stack decline what it declares."""

from dataclasses import replace

from contracts.court.court import Court
from contracts.mutants._support.broken import broken
from contracts.spec.abilities import FEATURES, Abilities


@broken(
    Court, "plan_for", "GATE-12a[no-recurrent-block]: is asked as muon, muon@dense, expected muon@hybrid, muon@dense"
)
def asks_what_the_reference_builds(plan_for, self, profile, abilities):
    """Plans as for a stack with every feature, so that others decline nearly everything."""
    return plan_for(self, profile, Abilities(has=frozenset(FEATURES)))


@broken(Court, "plan_for", "GATE-12a[nor-mamba]: is asked as muon@dense, expected muon@pairs, muon@dense")
def asks_the_leanest_alone(plan_for, self, profile, abilities):
    """Over-correction: everybody is asked about a dense transformer, and experts are judged nowhere."""
    plan = plan_for(self, profile, abilities)
    return replace(plan, items=tuple(each for each in plan.items if each.case.endswith("@dense")))


@broken(Court, "plan_for", "GATE-12a[every-feature]: is asked as muon, expected muon, muon@dense")
def asks_the_richest_alone(plan_for, self, profile, abilities):
    """A stack that gains an ability is no longer asked on the recipe that it was asked on before."""
    plan = plan_for(self, profile, abilities)
    richest = {each.above: each for each in reversed(plan.items)}
    return replace(plan, items=tuple(each for each in plan.items if richest[each.above] == each))


@broken(Court, "plan_for", "GATE-12a[no-experts-either]: 0 reasons are given for not asking OPT-01b[muon]")
def chooses_without_a_word(plan_for, self, profile, abilities):
    """Asks leaner recipes and does not say so, so that nobody misses the others."""
    return replace(plan_for(self, profile, abilities), choices=())


@broken(Court, "plan_for", "GATE-12a[nothing-declared]: is claimed: True, ruled out: True")
def claims_what_it_rules_out(plan_for, self, profile, abilities):
    """Every planned item counts as claimed."""
    plan = plan_for(self, profile, abilities)
    return replace(plan, claimed=tuple(str(item) for item in plan.items))


@broken(Court, "verdict", "GATE-12b[declines-what-it-declares]: verdict is conformant, expected violated")
def believes_the_decline(verdict, self, run, today):
    """An item that is not offered is no fault, whatever was declared."""
    return verdict(self, replace(run, plan=replace(run.plan, claimed=())), today)


@broken(Court, "verdict", "GATE-12b[declines-something-else]: verdict is violated, expected conformant")
def forbids_every_decline(verdict, self, run, today):
    """Over-correction: a stack with abilities may decline nothing, not even what it declares to lack."""
    every = tuple(str(item) for item in run.plan.items)
    return verdict(self, replace(run, plan=replace(run.plan, claimed=every)), today)
