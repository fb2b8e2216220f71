"""Verdict code to which a baseline means less, or more, than what was judged there."""

from dataclasses import replace

from contracts.court.court import Court
from contracts.mutants._support.broken import broken
from contracts.spec.records import Baseline


@broken(Court, "verdict", "GATE-11a[not-offered]: verdict is conformant, expected violated", bugs=("TST-06",))
def a_baseline_is_decoration(verdict, self, run, today):
    """Records what the baseline judged and does not look at it again."""
    return verdict(self, replace(run, baseline=None), today)


@broken(Court, "verdict", "GATE-11a[not-planned]: verdict is conformant, expected violated")
def only_the_plan_is_compared(verdict, self, run, today):
    """Looks the items of the plan up in the baseline, so that a smaller plan has lost nothing."""
    assert run.baseline is not None
    kept = tuple(item for item in run.baseline.judged if item in run.plan.items)
    return verdict(self, replace(run, baseline=replace(run.baseline, judged=kept)), today)


@broken(Court, "verdict", "GATE-11a[more-than-before]: verdict is violated, expected conformant")
def everything_planned_was_judged(verdict, self, run, today):
    """Over-correction: demands what the baseline could not ask either."""
    everything = Baseline(of="the baseline", judged=run.plan.items)
    return verdict(self, replace(run, baseline=everything), today)


@broken(Court, "verdict", "GATE-11a[no-baseline]: verdict is conformant, expected incomplete")
def without_a_record_there_is_nothing_to_compare(verdict, self, run, today):
    """Leaves the comparison out where the cache has lost the record."""
    gone = run.baseline is not None and run.baseline.missing
    return verdict(self, replace(run, baseline=None if gone else run.baseline), today)


@broken(Court, "baseline", "GATE-11c[broken]: the baseline has TOPO-02[pp2-tp2], expected")
def what_was_broken_is_not_owed(baseline, self, earlier, run, today):
    """Demands what was judged only, so that a change may decline what main has broken."""
    compared = baseline(self, earlier, run, today)
    owed = tuple(each for each in compared.baseline.judged if compared.baseline.before[str(each)].outcome != "broken")
    return replace(compared, baseline=replace(compared.baseline, judged=owed))


@broken(Court, "baseline", "GATE-11b[other-ranks]: was accepted, expected a refusal")
def any_record_is_a_baseline(baseline, self, earlier, run, today):
    """Compares a run with whatever it is given."""
    return baseline(self, replace(earlier, header=run.header), run, today)


@broken(Court, "baseline", "GATE-11c[violated]: the baseline has TOPO-02[pp2-ep2], expected")
def what_failed_need_not_be_asked(baseline, self, earlier, run, today):
    """Keeps what held, so that a violation may become a question that is declined."""
    held = tuple(result for result in earlier.results if result.outcome != "violated")
    items = tuple(result.item for result in held)
    return baseline(self, replace(earlier, results=held, plan=replace(earlier.plan, items=items)), run, today)
