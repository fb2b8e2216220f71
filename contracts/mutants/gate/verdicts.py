"""Verdict code with one fault: each is a way in which a real gate has let something through."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.court import record
from contracts.court.court import Court
from contracts.mutants._support.broken import broken
from contracts.spec.records import Footer, Run, Verdict


@broken(Court, "verdict", "GATE-01[all-skipped]: verdict is conformant, expected incomplete")
def no_violation_is_a_pass(verdict, self, run, today):
    """The verdict is green unless something is violated: the runner's exit 5 mapped to 0."""
    judged = verdict(self, run, today)
    return judged if judged.word == "violated" else replace(judged, word="conformant")


@broken(Court, "verdict", "GATE-01[one-untested]: verdict is conformant, expected incomplete")
def untested_is_forgiven(verdict, self, run, today):
    """Contracts without a check do not count."""
    known = tuple(result for result in run.results if result.outcome != "untested")
    items = tuple(item for item in run.plan.items if item in {result.item for result in known})
    return verdict(self, replace(run, results=known, plan=replace(run.plan, items=items)), today)


@broken(Court, "verdict", "GATE-01[one-not-run]: verdict is conformant, expected incomplete")
def absence_is_a_decline(verdict, self, run, today):
    """A package that is not installed counts as something that the stack does not offer, and the rest is a pass."""
    declined = tuple(replace(r, outcome="not offered") if r.outcome == "not run" else r for r in run.results)
    return verdict(self, replace(run, results=declined), today)


@broken(Court, "verdict", "GATE-01[one-not-offered]: verdict is incomplete, expected conformant")
def not_offered_is_held_against_it(verdict, self, run, today):
    """Over-correction: a stack is blamed for what it never claimed."""
    judged = verdict(self, run, today)
    return replace(judged, word="incomplete") if judged.counts["not offered"] else judged


@broken(Court, "verdict", "GATE-02[one-absent]: verdict is conformant, expected incomplete")
def plan_is_what_came(verdict, self, run, today):
    """The plan is computed from the results, so it shrinks with them."""
    came = tuple(result.item for result in run.results)
    return verdict(self, replace(run, plan=replace(run.plan, items=came)), today)


@broken(Court, "verdict", "GATE-02[came-twice]: verdict is broken, expected violated")
def first_result_wins(verdict, self, run, today):
    """Keeps the first of two results for one item, so a retry hides a failure."""
    first = {result.item: result for result in reversed(run.results)}
    judged = verdict(self, replace(run, results=tuple(first.values())), today)
    return replace(judged, word="broken")


@broken(Court, "read_run", "GATE-02a[no-footer]: was accepted, expected a refusal")
def footer_is_optional(read_run, self, text):
    """Reads a truncated record as a smaller one."""
    lines = text.splitlines()
    if lines and not lines[-1].startswith('{"footer"'):
        results = sum(line.startswith('{"result"') for line in lines)
        above, finished = record.digest(text), "2026-06-15T00:00:00+00:00"
        closing = Footer(digest="", results=results, word="conformant", exit_code=0, finished=finished)
        text += f"{record.line(record.sealed(closing, above))}\n"
    return read_run(self, text)


@broken(Court, "read_run", "GATE-02a[outcome-edited]: was accepted, expected a refusal")
def footer_vouches_for_the_plan_alone(read_run, self, text):
    """The hash in the footer covers only the plan, so a result can be edited."""
    return read_run(self, record.sealed_anew(text))


@broken(Court, "read_run", "GATE-02a[footer-edited]: was accepted, expected a refusal")
def footer_vouches_for_the_lines_above(read_run, self, text):
    """The hash covers all lines but its own, so the verdict that a record closes with can be edited."""
    return read_run(self, record.sealed_anew(text) if text.count('"footer"') == 1 else text)


@broken(Court, "verdict", "GATE-03[stale]: verdict is conformant, expected violated")
def stale_deviations_stay(verdict, self, run, today):
    """Keeps a deviation whose contract holds again."""
    judged = verdict(self, run, today)
    faults = tuple(fault for fault in judged.faults if "stale" not in fault.words)
    return replace(judged, faults=faults, word=judged.word if faults else "conformant")


@broken(Court, "verdict", "GATE-03[expired]: verdict is conformant, expected violated")
def deviations_never_expire(verdict, self, run, today):
    """Ignores the expiry date."""
    return verdict(self, run, "2000-01-01")


@broken(Court, "verdict", "GATE-03[last-day]: verdict is violated, expected conformant")
def last_day_is_too_late(verdict, self, run, today):
    """Over-correction: an entry is red on its expiry date."""
    return verdict(self, run, "2026-06-16")


@broken(Court, "verdict", "GATE-03[does-not-cover-broken]: verdict is conformant, expected broken")
def deviation_covers_errors(verdict, self, run, today):
    """A deviation also forgives an adapter that crashes."""
    forgiven = tuple(replace(r, outcome="violated") if r.outcome == "broken" else r for r in run.results)
    return verdict(self, replace(run, results=forgiven), today)


@broken(Court, "verdict", "GATE-04[claimed-and-always-declined]: verdict is nothing ran, expected violated")
def claims_are_believed(verdict, self, run, today):
    """Believes a stack's claims without checking them."""
    subject = replace(run.header.subject, offers=frozenset())
    return verdict(self, replace(run, header=replace(run.header, subject=subject)), today)


class _Believed(Court):
    def verdict(self, run: Run, today: str) -> Verdict:
        subject = run.header.subject
        offers = subject.offers if subject.abilities is None else frozenset[str]()
        return super().verdict(replace(run, header=replace(run.header, subject=replace(subject, offers=offers))), today)


@mutant(of="GATE-04", case="declined-for-another-reason-too", says="verdict is nothing ran, expected violated")
class WhoDeclaresAbilitiesIsBelieved(_Believed):
    """Asks no claim of a stack that declares abilities, whatever it then declines."""


@broken(Court, "verdict", "GATE-04[declined-for-a-declared-lack]: verdict is violated, expected nothing ran")
def abilities_are_forgotten(verdict, self, run, today):
    """Over-correction: a profile of what a stack has said that it lacks makes its claim a false one."""
    subject = replace(run.header.subject, abilities=None)
    return verdict(self, replace(run, header=replace(run.header, subject=subject)), today)


@broken(Court, "fate", "GATE-07[by-a-crash]: fate is 'killed', expected 'crashed'", bugs=("TST-03",))
def crash_is_a_kill(fate, self, result, says):
    """Counts every outcome except a pass as a kill."""
    return "survived" if result.outcome == "holds" else "killed"


@broken(Court, "fate", "GATE-07[for-other-words]: fate is 'killed', expected 'wrong words'")
def any_violation_is_a_kill(former, self, result, says):
    """Counts a violation for another reason as a kill."""
    fate = former(self, result, says)
    return "killed" if fate == "wrong words" else fate


@broken(Court, "verdict", "GATE-07a[one-survived]: verdict is conformant, expected broken")
def matrix_is_decoration(verdict, self, run, today):
    """Prints the kill matrix and never uses it."""
    return verdict(self, replace(run, kills=()), today)


@broken(Court, "verdict", "GATE-03[a-case-outside]: verdict is violated, expected conformant")
def deviations_name_what_is_planned(verdict, self, run, today):
    """A deviation for a case outside the profile counts as unmatched."""
    whole = tuple(each for each in run.plan.outside if "[" not in each)
    return verdict(self, replace(run, plan=replace(run.plan, outside=whole)), today)
