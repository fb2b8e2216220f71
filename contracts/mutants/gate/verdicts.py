"""Verdict code with one fault: each is a way in which a real gate has let something through."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.court import record
from contracts.court.court import Court
from contracts.spec.records import Fate, Footer, Result, Run, Verdict


@mutant(of="GATE-01", case="all-skipped", says="verdict is conformant, expected incomplete")
class NoViolationIsAPass(Court):
    """The verdict is green unless something is violated: the runner's exit 5 mapped to 0."""

    def verdict(self, run: Run, today: str) -> Verdict:
        judged = super().verdict(run, today)
        return judged if judged.word == "violated" else replace(judged, word="conformant")


@mutant(of="GATE-01", case="one-untested", says="verdict is conformant, expected incomplete")
class UntestedIsForgiven(Court):
    """Contracts without a check do not count."""

    def verdict(self, run: Run, today: str) -> Verdict:
        known = tuple(result for result in run.results if result.outcome != "untested")
        items = tuple(item for item in run.plan.items if item in {result.item for result in known})
        return super().verdict(replace(run, results=known, plan=replace(run.plan, items=items)), today)


@mutant(of="GATE-01", case="one-not-run", says="verdict is conformant, expected incomplete")
class AbsenceIsADecline(Court):
    """A package that is not installed counts as something that the stack does not offer, and the rest is a pass."""

    def verdict(self, run: Run, today: str) -> Verdict:
        declined = tuple(replace(r, outcome="not offered") if r.outcome == "not run" else r for r in run.results)
        return super().verdict(replace(run, results=declined), today)


@mutant(of="GATE-01", case="one-not-offered", says="verdict is incomplete, expected conformant")
class NotOfferedIsHeldAgainstIt(Court):
    """Over-correction: a stack is blamed for what it never claimed."""

    def verdict(self, run: Run, today: str) -> Verdict:
        judged = super().verdict(run, today)
        return replace(judged, word="incomplete") if judged.counts["not offered"] else judged


@mutant(of="GATE-02", case="one-absent", says="verdict is conformant, expected incomplete")
class PlanIsWhatCame(Court):
    """The plan is computed from the results, so it shrinks with them."""

    def verdict(self, run: Run, today: str) -> Verdict:
        came = tuple(result.item for result in run.results)
        return super().verdict(replace(run, plan=replace(run.plan, items=came)), today)


@mutant(of="GATE-02", case="came-twice", says="verdict is broken, expected violated")
class FirstResultWins(Court):
    """Keeps the first of two results for one item, so a retry hides a failure."""

    def verdict(self, run: Run, today: str) -> Verdict:
        first = {result.item: result for result in reversed(run.results)}
        judged = super().verdict(replace(run, results=tuple(first.values())), today)
        return replace(judged, word="broken")


@mutant(of="GATE-02a", case="no-footer", says="was accepted, expected a refusal")
class FooterIsOptional(Court):
    """Reads a truncated record as a smaller one."""

    def read_run(self, text: str) -> Run:
        lines = text.splitlines()
        if lines and not lines[-1].startswith('{"footer"'):
            results = sum(line.startswith('{"result"') for line in lines)
            above, finished = record.digest(text), "2026-06-15T00:00:00+00:00"
            closing = Footer(digest="", results=results, word="conformant", exit_code=0, finished=finished)
            text += f"{record.line(record.sealed(closing, above))}\n"
        return super().read_run(text)


@mutant(of="GATE-02a", case="outcome-edited", says="was accepted, expected a refusal")
class FooterVouchesForThePlanAlone(Court):
    """The hash in the footer covers only the plan, so a result can be edited."""

    def read_run(self, text: str) -> Run:
        return super().read_run(record.sealed_anew(text))


@mutant(of="GATE-02a", case="footer-edited", says="was accepted, expected a refusal")
class FooterVouchesForTheLinesAbove(Court):
    """The hash covers all lines but its own, so the verdict that a record closes with can be edited."""

    def read_run(self, text: str) -> Run:
        return super().read_run(record.sealed_anew(text) if text.count('"footer"') == 1 else text)


@mutant(of="GATE-03", case="stale", says="verdict is conformant, expected violated")
class StaleDeviationsStay(Court):
    """Keeps a deviation whose contract holds again."""

    def verdict(self, run: Run, today: str) -> Verdict:
        judged = super().verdict(run, today)
        faults = tuple(fault for fault in judged.faults if "stale" not in fault.words)
        return replace(judged, faults=faults, word=judged.word if faults else "conformant")


@mutant(of="GATE-03", case="expired", says="verdict is conformant, expected violated")
class DeviationsNeverExpire(Court):
    """Ignores the expiry date."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return super().verdict(run, "2000-01-01")


@mutant(of="GATE-03", case="last-day", says="verdict is violated, expected conformant")
class LastDayIsTooLate(Court):
    """Over-correction: an entry is red on its expiry date."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return super().verdict(run, "2026-06-16")


@mutant(of="GATE-03", case="does-not-cover-broken", says="verdict is conformant, expected broken")
class DeviationCoversErrors(Court):
    """A deviation also forgives an adapter that crashes."""

    def verdict(self, run: Run, today: str) -> Verdict:
        forgiven = tuple(replace(r, outcome="violated") if r.outcome == "broken" else r for r in run.results)
        return super().verdict(replace(run, results=forgiven), today)


@mutant(of="GATE-04", case="claimed-and-always-declined", says="verdict is nothing ran, expected violated")
class ClaimsAreBelieved(Court):
    """Believes a stack's claims without checking them."""

    def verdict(self, run: Run, today: str) -> Verdict:
        subject = replace(run.header.subject, offers=frozenset())
        return super().verdict(replace(run, header=replace(run.header, subject=subject)), today)


class _Believed(Court):
    def verdict(self, run: Run, today: str) -> Verdict:
        subject = run.header.subject
        offers = subject.offers if subject.abilities is None else frozenset[str]()
        return super().verdict(replace(run, header=replace(run.header, subject=replace(subject, offers=offers))), today)


@mutant(of="GATE-04", case="declined-for-another-reason-too", says="verdict is nothing ran, expected violated")
class WhoDeclaresAbilitiesIsBelieved(_Believed):
    """Asks no claim of a stack that declares abilities, whatever it then declines."""


@mutant(of="GATE-04", case="declined-for-a-declared-lack", says="verdict is violated, expected nothing ran")
class AbilitiesAreForgotten(Court):
    """Over-correction: a profile of what a stack has said that it lacks makes its claim a false one."""

    def verdict(self, run: Run, today: str) -> Verdict:
        subject = replace(run.header.subject, abilities=None)
        return super().verdict(replace(run, header=replace(run.header, subject=subject)), today)


@mutant(of="GATE-07", case="by-a-crash", says="fate is 'killed', expected 'crashed'", bugs=("TST-03",))
class CrashIsAKill(Court):
    """Counts every outcome except a pass as a kill."""

    def fate(self, result: Result, says: str) -> Fate:
        return "survived" if result.outcome == "holds" else "killed"


@mutant(of="GATE-07", case="for-other-words", says="fate is 'killed', expected 'wrong words'")
class AnyViolationIsAKill(Court):
    """Counts a violation for another reason as a kill."""

    def fate(self, result: Result, says: str) -> Fate:
        fate = super().fate(result, says)
        return "killed" if fate == "wrong words" else fate


@mutant(of="GATE-07a", case="one-survived", says="verdict is conformant, expected broken")
class MatrixIsDecoration(Court):
    """Prints the kill matrix and never uses it."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return super().verdict(replace(run, kills=()), today)


@mutant(of="GATE-03", case="a-case-outside", says="verdict is violated, expected conformant")
class DeviationsNameWhatIsPlanned(Court):
    """A deviation for a case outside the profile counts as unmatched."""

    def verdict(self, run: Run, today: str) -> Verdict:
        whole = tuple(each for each in run.plan.outside if "[" not in each)
        return super().verdict(replace(run, plan=replace(run.plan, outside=whole)), today)
