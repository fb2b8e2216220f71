"""Stacks whose receipts of several ranks cover only one rank, or overwrite each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from contracts.contract import mutant
from contracts.instruments.ranks import torch_distributed
from contracts.mutants._support.broken import broken
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.run_facts import RankFacts, RankReporter


class _SpeaksForItself(RankReporter):
    def gather(self, own: RankFacts) -> RankFacts:
        return own


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="the rank map of rank 0 has local ranks [0], expected [0, 1]",
        bugs=("PRV-01",))  # fmt: skip
class KeepsTheMapOfOneRank(Reference):
    """Each rank's rank map lists only itself, because nobody asks the other ranks."""

    ranks = _SpeaksForItself


class _AsksTheFirst(RankReporter):
    def gather(self, own: RankFacts) -> RankFacts:
        told = super().gather(own)
        return replace(told, memory=told.memory[:1])


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="rank 1 alone was made to hold 512 MiB more", bugs=("PRV-23",))
class KeepsThePeakOfTheFirst(Reference):
    """Records the peak memory of rank 0, which holds the least."""

    ranks = _AsksTheFirst


class _HearsTheLast(RankReporter):
    def gather(self, own: RankFacts) -> RankFacts:
        told = super().gather(own)
        return replace(told, memory=told.memory[-1:])


@mutant(of="RCPT-01a", case="the-first-of-tp2", says="rank 0 alone was made to hold 512 MiB more", bugs=("PRV-23",))
class KeepsThePeakOfTheLast(Reference):
    """Each rank's peak overwrites the previous one."""

    ranks = _HearsTheLast


class _HasItsOwnClock(RankReporter):
    def slowest(self, seconds: float) -> float:
        return seconds


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="and rank 1 took 1.5 s longer than the rest")
@mutant(of="RCPT-01a", case="the-first-of-tp2", says="and rank 0 took 1.5 s longer than the rest")
class StopsItsOwnClock(Reference):
    """Measures the seconds until this rank finished, without the ranks it would wait for."""

    ranks = _HasItsOwnClock


class _TakesTheMean(RankReporter):
    def slowest(self, seconds: float) -> float:
        torch, dist = torch_distributed()
        every = torch.tensor([seconds])
        dist.all_reduce(every)
        return float(every.item()) / self.place.world


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="and rank 1 took 1.5 s longer than the rest")
class TakesTheMeanOfTheClocks(Reference):
    """Takes the mean of the ranks' times as the time of a step."""

    ranks = _TakesTheMean


class _CountsByTwo(RankReporter):
    factor = 2.0

    def timed_step(self, step: Callable[[], Any]) -> tuple[Any, float]:
        done, seconds = super().timed_step(step)
        return replace(done, tokens=int(done.tokens * self.factor)), seconds


class _CountsItsRows(_CountsByTwo):
    factor = 0.5


@mutant(of="RCPT-01a", case="the-first-of-tp2", says="the labels of steps 2 and 3 are")
class CountsTokensByTheWorld(Reference):
    """Multiplies a rank's tokens by the world, which doubles them where two ranks compute the same rows."""

    ranks = _CountsByTwo


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="the labels of steps 2 and 3 are")
class CountsTheTokensOfItsRows(Reference):
    """Counts only the tokens of this rank's rows as those of the step."""

    ranks = _CountsItsRows


class _NamesTheFirstsKernels(RankReporter):
    def gather(self, own: RankFacts) -> RankFacts:
        told = super().gather(own)
        return replace(told, backends=tuple(replace(row, **_first(row)) for row in told.backends))


def _first(row: Any) -> dict[str, Any]:
    """The answer of rank 0 among those of all ranks."""
    actual = row.actual.partition("; ")[0].partition(" on rank")[0] if "on rank 0" in row.actual else row.actual
    return {"actual": actual, "reason": None if actual == row.requested else row.reason}


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="the experts ran as torch-grouped (no reason)")
class NamesTheKernelOfTheFirst(Reference):
    """Records rank 0's kernel and ignores the rank that fell back and sets the pace."""

    ranks = _NamesTheFirstsKernels


class _LeavesOneFile(RankReporter):
    mark = ""


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="@lab is of box-")
class LeavesOneFile(Reference):
    """Every rank writes its receipt under one name, and only the last one remains."""

    ranks = _LeavesOneFile


@broken(Reference, "run_receipts", "RCPT-01a[the-first-of-tp2]: rank 1 left")
def leaves_the_firsts_alone(run_receipts, self, recipe, degrees, steps, folder, taken, strain):
    """Only rank 0 leaves a receipt, so another node's machine is not recorded."""
    left = run_receipts(self, recipe, degrees, steps, folder, taken, strain)
    return replace(left, kept={name: each for name, each in left.kept.items() if "rank" not in name})
