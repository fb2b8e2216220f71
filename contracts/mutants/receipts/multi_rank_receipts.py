"""Stacks whose receipts of several ranks are about one of them, or lie on each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from contracts.contract import mutant
from contracts.instruments.ranks import torch_distributed
from contracts.spec.receipt import Provenance
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees
from contracts.spec.world import LeftReceipts, Strain
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.run_facts import RankFacts, RankReporter


class _SpeaksForItself(RankReporter):
    def gather(self, own: RankFacts) -> RankFacts:
        return own


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="the rank map of rank 0 has local ranks [0], expected [0, 1]",
        bugs=("PRV-01",))  # fmt: skip
class KeepsTheMapOfOneRank(Reference):
    """Nobody is asked: a rank's receipt has its own place, peaks and kernels."""

    ranks = _SpeaksForItself


class _AsksTheFirst(RankReporter):
    def gather(self, own: RankFacts) -> RankFacts:
        told = super().gather(own)
        return replace(told, memory=told.memory[:1])


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="rank 1 alone was made to hold 512 MiB more", bugs=("PRV-23",))
class KeepsThePeakOfTheFirst(Reference):
    """The memory of rank 0, which holds the least."""

    ranks = _AsksTheFirst


class _HearsTheLast(RankReporter):
    def gather(self, own: RankFacts) -> RankFacts:
        told = super().gather(own)
        return replace(told, memory=told.memory[-1:])


@mutant(of="RCPT-01a", case="the-first-of-tp2", says="rank 0 alone was made to hold 512 MiB more", bugs=("PRV-23",))
class KeepsThePeakOfTheLast(Reference):
    """Each rank's line takes the place of the one before."""

    ranks = _HearsTheLast


class _HasItsOwnClock(RankReporter):
    def slowest(self, seconds: float) -> float:
        return seconds


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="and rank 1 took 1.5 s longer than the rest")
@mutant(of="RCPT-01a", case="the-first-of-tp2", says="and rank 0 took 1.5 s longer than the rest")
class StopsItsOwnClock(Reference):
    """Seconds until this rank was done, whoever it would have had to wait for."""

    ranks = _HasItsOwnClock


class _TakesTheMean(RankReporter):
    def slowest(self, seconds: float) -> float:
        torch, dist = torch_distributed()
        every = torch.tensor([seconds])
        dist.all_reduce(every)
        return float(every.item()) / self.place.world


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="and rank 1 took 1.5 s longer than the rest")
class TakesTheMeanOfTheClocks(Reference):
    """A step takes as long as its ranks on average."""

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
    """Tokens of a rank times ranks: twice as many where two ranks compute the same rows."""

    ranks = _CountsByTwo


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="the labels of steps 2 and 3 are")
class CountsTheTokensOfItsRows(Reference):
    """Tokens of this rank's rows stand for those of the step."""

    ranks = _CountsItsRows


class _NamesTheFirstsKernels(RankReporter):
    def gather(self, own: RankFacts) -> RankFacts:
        told = super().gather(own)
        return replace(told, backends=tuple(replace(row, **_first(row)) for row in told.backends))


def _first(row: Any) -> dict[str, Any]:
    """What the first rank said, of what all said."""
    actual = row.actual.partition("; ")[0].partition(" on rank")[0] if "on rank 0" in row.actual else row.actual
    return {"actual": actual, "reason": None if actual == row.requested else row.reason}


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="the experts ran as torch-grouped (no reason)")
class NamesTheKernelOfTheFirst(Reference):
    """Rank 0 tells what ran; the rank that fell back, and sets the pace, is not heard."""

    ranks = _NamesTheFirstsKernels


class _LeavesOneFile(RankReporter):
    mark = ""


@mutant(of="RCPT-01a", case="the-second-of-dp2", says="@lab is of box-")
class LeavesOneFile(Reference):
    """Every rank writes the receipt of the run under its one name, and the last one stays."""

    ranks = _LeavesOneFile


@mutant(of="RCPT-01a", case="the-first-of-tp2", says="rank 1 left")
class LeavesTheFirstsAlone(Reference):
    """The first rank alone leaves a receipt: of another node's machine nothing is known."""

    def run_receipts(
        self, recipe: Recipe, degrees: Degrees, steps: int, folder: str, taken: Provenance, strain: Strain
    ) -> LeftReceipts:
        left = super().run_receipts(recipe, degrees, steps, folder, taken, strain)
        return replace(left, kept={name: each for name, each in left.kept.items() if "rank" not in name})
