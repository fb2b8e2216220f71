"""Verdict code whose reports or records differ from the verdict."""

import re
from dataclasses import replace

from contracts.court.court import Court
from contracts.mutants._support.broken import broken


@broken(Court, "report", "GATE-06[terminal]: terminal does not say ['rankproof check --stack my.stack:Mine")
def no_line_to_run_it_again(report, self, run, today, form):
    """The report states the failure without a command to run it again."""
    return re.sub(r"rankproof check \S+", "see the log", report(self, run, today, form))


@broken(Court, "report", "GATE-08[not-run]: junit has 0 failures, the verdict is incomplete")
def skips_are_green_in_j_unit(report, self, run, today, form):
    """The JUnit file has results and no verdict, so a run of skips is green."""
    text = report(self, run, today, form)
    return re.sub(r"<(failure|error)\b.*?</\1>", "", text, flags=re.DOTALL) if form == "junit" else text


@broken(Court, "report", "GATE-08[conformant]: html does not list ['TOPO-02[pp2-tp2]', 'TOPO-02[pp2-ep2]']")
def counts_what_holds(report, self, run, today, form):
    """The page counts what holds and names none of it, so that nobody can see what was judged."""
    text = report(self, run, today, form)
    return re.sub(r"pp2-[te]p2", "", text) if form == "html" else text


@broken(Court, "report", "GATE-08[untested]: annotations does not list ['PAT-12']")
def annotates_only_what_fails(report, self, run, today, form):
    """A warning is not thought worth an annotation, so a contract that nothing judged is not seen on GitHub."""
    text = report(self, run, today, form)
    return re.sub(r"::warning .*", "", text) if form == "annotations" else text


@broken(Court, "write_run", "GATE-09[deviates]: replayed verdict is violated")
def record_forgets_deviations(write_run, self, run, today):
    """The record omits the deviations that were in force, so a replay judges another run."""
    return write_run(self, replace(run, deviations=()), today)


@broken(Court, "write_run", "GATE-09[unfit]: replayed verdict is conformant")
def record_forgets_who_is_unfit(write_run, self, run, today):
    """The record omits which contracts were unfit, so a replay believes them."""
    return write_run(self, replace(run, unfit=()), today)


@broken(Court, "report", "GATE-12c[markdown]: markdown does not say that rope-angles is float32")
def reports_without_conventions(report, self, run, today, form):
    """The report leaves out by which conventions the stack was judged."""
    subject = replace(run.header.subject, conventions={})
    return report(self, replace(run, header=replace(run.header, subject=subject)), today, form)


@broken(Court, "write_run", "GATE-12c[json]: json does not say that misfits is first")
def records_the_first_convention(write_run, self, run, today):
    """The record keeps one convention of several."""
    subject = replace(run.header.subject, conventions=dict([*run.header.subject.conventions.items()][:1]))
    return write_run(self, replace(run, header=replace(run.header, subject=subject)), today)
