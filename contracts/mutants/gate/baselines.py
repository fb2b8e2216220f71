"""Verdict code to which a baseline means less, or more, than what was judged there."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.records import Baseline, Run, Verdict


@mutant(of="GATE-11a", case="not-offered", says="verdict is conformant, expected violated", bugs=("TST-06",))
class ABaselineIsDecoration(Court):
    """Records what the baseline judged and does not look at it again."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return super().verdict(replace(run, baseline=None), today)


@mutant(of="GATE-11a", case="not-planned", says="verdict is conformant, expected violated")
class OnlyThePlanIsCompared(Court):
    """Looks the items of the plan up in the baseline, so that a smaller plan has lost nothing."""

    def verdict(self, run: Run, today: str) -> Verdict:
        assert run.baseline is not None
        kept = tuple(item for item in run.baseline.judged if item in run.plan.items)
        return super().verdict(replace(run, baseline=replace(run.baseline, judged=kept)), today)


@mutant(of="GATE-11a", case="more-than-before", says="verdict is violated, expected conformant")
class EverythingPlannedWasJudged(Court):
    """Over-correction: demands what the baseline could not ask either."""

    def verdict(self, run: Run, today: str) -> Verdict:
        everything = Baseline(of="the baseline", judged=run.plan.items)
        return super().verdict(replace(run, baseline=everything), today)


@mutant(of="GATE-11b", case="other-ranks", says="was accepted, expected a refusal")
class AnyRecordIsABaseline(Court):
    """Compares a run with whatever it is given."""

    def baseline(self, earlier: Run, run: Run, today: str) -> Run:
        return super().baseline(replace(earlier, header=run.header), run, today)


@mutant(of="GATE-11c", case="violated", says="the baseline has TOPO-02[pp2-ep2], expected")
class WhatFailedNeedNotBeAsked(Court):
    """Keeps what held, so that a violation may become a question that is declined."""

    def baseline(self, earlier: Run, run: Run, today: str) -> Run:
        held = tuple(result for result in earlier.results if result.outcome != "violated")
        items = tuple(result.item for result in held)
        return super().baseline(replace(earlier, results=held, plan=replace(earlier.plan, items=items)), run, today)
