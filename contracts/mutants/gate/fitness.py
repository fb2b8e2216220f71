"""Verdict code that believes an unfit contract, or lets it silence others."""

from dataclasses import replace

from contracts.court.court import Court
from contracts.mutants._support.broken import broken
from contracts.spec.records import Unfit


@broken(Court, "unfit", "GATE-07b[mutant-not-asked]: the unfit contracts are ['TOPO-02'], expected []")
def void_is_a_survivor(unfit, self, baseline, kills, unguarded):
    """Counts a mutant that could not be asked here as a survivor, so a fit contract is silenced."""
    asked = tuple(replace(kill, fate="survived") if kill.fate == "void" else kill for kill in kills)
    return unfit(self, baseline, asked, unguarded)


@broken(Court, "unfit", "GATE-07b[not-run-on-the-reference]: the unfit contracts are ['TOPO-02'], expected []")
def absence_is_a_failure(unfit, self, baseline, kills, unguarded):
    """Counts a case that could not be put to the reference as a failure on it."""
    failed = tuple(replace(each, outcome="broken") if each.outcome == "not run" else each for each in baseline)
    return unfit(self, failed, kills, unguarded)


@broken(Court, "unfit", "GATE-07b[fails-on-the-reference]: the unfit contracts are [], expected ['TOPO-02']")
def only_mutants_prove(unfit, self, baseline, kills, unguarded):
    """Does not check that a contract holds on the correct stack: its mutants are killed, but by a false alarm."""
    return unfit(self, (), kills, unguarded)


@broken(Court, "unfit", "GATE-07b[mutant-crashed]: the unfit contracts are [], expected ['TOPO-02']")
def a_crash_proves_it(unfit, self, baseline, kills, unguarded):
    """Counts a mutant that ended in an error as proof of the contract."""
    return unfit(self, baseline, tuple(kill for kill in kills if kill.fate != "crashed"), unguarded)


@broken(Court, "unfit", "GATE-07b[no-mutant]: the unfit contracts are [], expected ['TOPO-02']")
def nothing_to_miss_is_fit(unfit, self, baseline, kills, unguarded):
    """Calls a contract without mutants fit, because it has missed none."""
    return unfit(self, baseline, kills, ())


@broken(Court, "verdict", "GATE-07c[it-says-holds]: 'TOPO-02[pp2-tp2]': 'holds', 'TOPO-03[tp4]': 'holds'}, expected")
def unfit_is_believed(verdict, self, run, today):
    """Counts an unfit contract's outcome as valid, and the verdict is green."""
    return verdict(self, replace(run, unfit=(), kills=()), today)


@broken(Court, "verdict", "GATE-07c[others-are-violated]: 'TOPO-03[tp4]': 'not run'}, expected")
def one_silences_all(verdict, self, run, today):
    """One unfit contract silences all others."""
    every = tuple(Unfit(id=item.id, words="the suite fails its own test") for item in run.plan.items)
    return verdict(self, replace(run, unfit=every) if run.unfit else run, today)


@broken(Court, "verdict", "GATE-07c[others-hold]: verdict is conformant, expected incomplete")
def silence_is_green(verdict, self, run, today):
    """Leaves out the items of an unfit contract and passes the rest."""
    judged = verdict(self, run, today)
    return replace(judged, word="conformant") if judged.unfit and judged.word == "incomplete" else judged


@broken(Court, "report", "GATE-07c[others-hold]: the report says that TOPO-02 is unfit: False")
def nobody_is_named(report, self, run, today, form):
    """The verdict is incomplete and does not name the unfit contract."""
    return report(self, run, today, form).partition("; 1 contract is unfit")[0]


@broken(Court, "verdict", "GATE-07c[its-mutant-is-recorded]: verdict is broken, expected incomplete")
def its_mutant_still_breaks_the_run(verdict, self, run, today):
    """The contract is silenced but its surviving mutant still counts, so the others get no verdict."""
    judged = verdict(self, run, today)
    return replace(judged, word="broken") if run.kills else judged
