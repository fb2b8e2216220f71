"""Courts whose reports or records say something else than their verdict."""

from __future__ import annotations

import re
from dataclasses import replace

from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.records import Form, Run


@mutant(of="GATE-06", case="terminal", says="terminal does not say ['rankproof check --stack my.stack:Mine")
class NoLineToRunItAgain(Court):
    """The report says what is wrong and not how to see it."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return re.sub(r"rankproof check \S+", "see the log", super().report(run, today, form))


@mutant(of="GATE-08", case="not-run", says="junit has 0 failures, the verdict is incomplete")
class SkipsAreGreenInJUnit(Court):
    """The JUnit file carries results and no verdict, so that a run of skips is green."""

    def report(self, run: Run, today: str, form: Form) -> str:
        text = super().report(run, today, form)
        return re.sub(r"<(failure|error)\b.*?</\1>", "", text, flags=re.DOTALL) if form == "junit" else text


@mutant(of="GATE-09", case="deviates", says="replayed verdict is violated")
class RecordForgetsDeviations(Court):
    """The deviations that were in force are not written, so a replay judges another run."""

    def write_run(self, run: Run, today: str) -> str:
        return super().write_run(replace(run, deviations=()), today)


@mutant(of="GATE-09", case="unfit", says="replayed verdict is conformant")
class RecordForgetsWhoIsUnfit(Court):
    """What failed the suite's own test is not written, so a replay believes it."""

    def write_run(self, run: Run, today: str) -> str:
        return super().write_run(replace(run, unfit=()), today)
