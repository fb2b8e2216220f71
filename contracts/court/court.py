"""The gate's own code as a party: it answers the questions of the GATE contracts, which are judged like any other.

It does not import the harness: mutants are derived from it, as they are from a stack.
"""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Mapping
from dataclasses import replace

from contracts import instruments
from contracts.contract import LAW
from contracts.court import judge, profiles, record, stopped_check
from contracts.court import torchrun_session as ranking
from contracts.court.baseline import baseline
from contracts.court.fitness import unfit
from contracts.court.report import render
from contracts.court.verdict import verdict
from contracts.spec.abilities import Abilities
from contracts.spec.array import Arrays
from contracts.spec.records import Fate, Form, Kill, Plan, Result, Run, Stop, Stopped, Verdict, Violation
from contracts.spec.tolerance import FLOAT32, FLOAT64
from contracts.spec.topology import Layout
from contracts.spec.violations import heard, parts_of
from contracts.spec.world import RanksRun


class Court:
    """Plans, judges, records and renders runs, and starts ranks."""

    name = "court"
    version = "1"
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {}
    offers = frozenset(
        {
            "plan",
            "plan_for",
            "verdict",
            "baseline",
            "write_run",
            "read_run",
            "report",
            "fate",
            "unfit",
            "run_ranks",
            "stopped",
        }
    ) | ({"differences", "parts"} if importlib.util.find_spec("torch") else frozenset())

    def plan(self, profile: str) -> Plan:
        return profiles.plan(LAW, profile)

    def plan_for(self, profile: str, abilities: Abilities) -> Plan:
        return profiles.plan(LAW, profile, abilities)

    def verdict(self, run: Run, today: str) -> Verdict:
        return verdict(run, datetime.date.fromisoformat(today))

    def baseline(self, earlier: Run, run: Run, today: str) -> Run:
        return replace(run, baseline=baseline(earlier, self.verdict(earlier, today), run.header))

    def write_run(self, run: Run, today: str) -> str:
        return record.write(run, datetime.date.fromisoformat(today))

    def read_run(self, text: str) -> Run:
        return record.read(text)[0]

    def report(self, run: Run, today: str, form: Form) -> str:
        return render(run, self.verdict(run, today), form)

    def fate(self, result: Result, says: str) -> Fate:
        return judge.fate_of(result, says)

    def unfit(
        self, baseline: tuple[Result, ...], kills: tuple[Kill, ...], unguarded: tuple[str, ...]
    ) -> Mapping[str, str]:
        return unfit(baseline, kills, unguarded)

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        return ranking.run(tests, ranks, limit_s)

    def stopped(self, by: Stop) -> Stopped:
        return stopped_check.run(by)

    def differences(self, got: Arrays, want: Arrays) -> str:
        double = all(each.dtype == "float64" for each in want.values())
        return instruments.numerics.gradient_differences("gradient", got, want, FLOAT64 if double else FLOAT32)

    def parts(self, got: Arrays, want: Arrays) -> tuple[Violation, ...]:
        with heard() as comparisons:
            words = self.differences(got, want)
        return parts_of(AssertionError(words), comparisons) if words else ()
