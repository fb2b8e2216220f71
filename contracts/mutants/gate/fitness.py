"""Verdict code that believes an unfit contract, or lets it silence others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.records import Form, Kill, Result, Run, Unfit, Verdict

_Kills = tuple[Kill, ...]
_Results = tuple[Result, ...]


@mutant(of="GATE-07b", case="mutant-not-asked", says="the unfit contracts are ['TOPO-02'], expected []")
class VoidIsASurvivor(Court):
    """Counts a mutant that could not be asked here as a survivor, so a fit contract is silenced."""

    def unfit(self, baseline: _Results, kills: _Kills, unguarded: tuple[str, ...]) -> Mapping[str, str]:
        asked = tuple(replace(kill, fate="survived") if kill.fate == "void" else kill for kill in kills)
        return super().unfit(baseline, asked, unguarded)


@mutant(of="GATE-07b", case="not-run-on-the-reference", says="the unfit contracts are ['TOPO-02'], expected []")
class AbsenceIsAFailure(Court):
    """Counts a case that could not be put to the reference as a failure on it."""

    def unfit(self, baseline: _Results, kills: _Kills, unguarded: tuple[str, ...]) -> Mapping[str, str]:
        failed = tuple(replace(each, outcome="broken") if each.outcome == "not run" else each for each in baseline)
        return super().unfit(failed, kills, unguarded)


@mutant(of="GATE-07b", case="fails-on-the-reference", says="the unfit contracts are [], expected ['TOPO-02']")
class OnlyMutantsProve(Court):
    """Does not check that a contract holds on the correct stack: its mutants are killed, but by a false alarm."""

    def unfit(self, baseline: _Results, kills: _Kills, unguarded: tuple[str, ...]) -> Mapping[str, str]:
        return super().unfit((), kills, unguarded)


@mutant(of="GATE-07b", case="mutant-crashed", says="the unfit contracts are [], expected ['TOPO-02']")
class ACrashProvesIt(Court):
    """Counts a mutant that ended in an error as proof of the contract."""

    def unfit(self, baseline: _Results, kills: _Kills, unguarded: tuple[str, ...]) -> Mapping[str, str]:
        return super().unfit(baseline, tuple(kill for kill in kills if kill.fate != "crashed"), unguarded)


@mutant(of="GATE-07b", case="no-mutant", says="the unfit contracts are [], expected ['TOPO-02']")
class NothingToMissIsFit(Court):
    """Calls a contract without mutants fit, because it has missed none."""

    def unfit(self, baseline: _Results, kills: _Kills, unguarded: tuple[str, ...]) -> Mapping[str, str]:
        return super().unfit(baseline, kills, ())


@mutant(of="GATE-07c", case="it-says-holds", says="'TOPO-02[pp2-tp2]': 'holds', 'TOPO-03[tp4]': 'holds'}, expected")
class UnfitIsBelieved(Court):
    """Counts an unfit contract's outcome as valid, and the verdict is green."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return super().verdict(replace(run, unfit=(), kills=()), today)


@mutant(of="GATE-07c", case="others-are-violated", says="'TOPO-03[tp4]': 'not run'}, expected")
class OneSilencesAll(Court):
    """One unfit contract silences all others."""

    def verdict(self, run: Run, today: str) -> Verdict:
        every = tuple(Unfit(id=item.id, words="the suite fails its own test") for item in run.plan.items)
        return super().verdict(replace(run, unfit=every) if run.unfit else run, today)


@mutant(of="GATE-07c", case="others-hold", says="verdict is conformant, expected incomplete")
class SilenceIsGreen(Court):
    """Leaves out the items of an unfit contract and passes the rest."""

    def verdict(self, run: Run, today: str) -> Verdict:
        judged = super().verdict(run, today)
        return replace(judged, word="conformant") if judged.unfit and judged.word == "incomplete" else judged


@mutant(of="GATE-07c", case="others-hold", says="the report says that TOPO-02 is unfit: False")
class NobodyIsNamed(Court):
    """The verdict is incomplete and does not name the unfit contract."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return super().report(run, today, form).partition("; 1 contract is unfit")[0]


@mutant(of="GATE-07c", case="its-mutant-is-recorded", says="verdict is broken, expected incomplete")
class ItsMutantStillBreaksTheRun(Court):
    """The contract is silenced but its surviving mutant still counts, so the others get no verdict."""

    def verdict(self, run: Run, today: str) -> Verdict:
        judged = super().verdict(run, today)
        return replace(judged, word="broken") if run.kills else judged
