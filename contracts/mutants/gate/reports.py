"""Verdict code whose reports or records differ from the verdict."""

from __future__ import annotations

import re
from dataclasses import replace

from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.records import Form, Run


@mutant(of="GATE-06", case="terminal", says="terminal does not say ['rankproof check --stack my.stack:Mine")
class NoLineToRunItAgain(Court):
    """The report states the failure without a command to run it again."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return re.sub(r"rankproof check \S+", "see the log", super().report(run, today, form))


@mutant(of="GATE-08", case="not-run", says="junit has 0 failures, the verdict is incomplete")
class SkipsAreGreenInJUnit(Court):
    """The JUnit file has results and no verdict, so a run of skips is green."""

    def report(self, run: Run, today: str, form: Form) -> str:
        text = super().report(run, today, form)
        return re.sub(r"<(failure|error)\b.*?</\1>", "", text, flags=re.DOTALL) if form == "junit" else text


@mutant(of="GATE-08", case="conformant", says="html does not list ['TOPO-02[pp2-tp2]', 'TOPO-02[pp2-ep2]']")
class CountsWhatHolds(Court):
    """The page counts what holds and names none of it, so that nobody can see what was judged."""

    def report(self, run: Run, today: str, form: Form) -> str:
        text = super().report(run, today, form)
        return re.sub(r"pp2-[te]p2", "", text) if form == "html" else text


@mutant(of="GATE-08", case="untested", says="annotations does not list ['PAT-12']")
class AnnotatesOnlyWhatFails(Court):
    """A warning is not thought worth an annotation, so a contract that nothing judged is not seen on GitHub."""

    def report(self, run: Run, today: str, form: Form) -> str:
        text = super().report(run, today, form)
        return re.sub(r"::warning .*", "", text) if form == "annotations" else text


@mutant(of="GATE-09", case="deviates", says="replayed verdict is violated")
class RecordForgetsDeviations(Court):
    """The record omits the deviations that were in force, so a replay judges another run."""

    def write_run(self, run: Run, today: str) -> str:
        return super().write_run(replace(run, deviations=()), today)


@mutant(of="GATE-09", case="unfit", says="replayed verdict is conformant")
class RecordForgetsWhoIsUnfit(Court):
    """The record omits which contracts were unfit, so a replay believes them."""

    def write_run(self, run: Run, today: str) -> str:
        return super().write_run(replace(run, unfit=()), today)


@mutant(of="GATE-12c", case="markdown", says="markdown does not say that rope-angles is float32")
class ReportsWithoutConventions(Court):
    """The report leaves out by which conventions the stack was judged."""

    def report(self, run: Run, today: str, form: Form) -> str:
        subject = replace(run.header.subject, conventions={})
        return super().report(replace(run, header=replace(run.header, subject=subject)), today, form)


@mutant(of="GATE-12c", case="json", says="json does not say that misfits is first")
class RecordsTheFirstConvention(Court):
    """The record keeps one convention of several."""

    def write_run(self, run: Run, today: str) -> str:
        subject = replace(run.header.subject, conventions=dict([*run.header.subject.conventions.items()][:1]))
        return super().write_run(replace(run, header=replace(run.header, subject=subject)), today)
