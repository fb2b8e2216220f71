"""Stacks whose fabric measurement reports more than was measured."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.instruments.ranks import here
from contracts.spec.world import FabricPass, Upset
from contracts.stacks.reference.stack import Reference


class _Passes(Reference):
    """A stack that changes a pass on its way out."""

    def changed(self, found: FabricPass) -> FabricPass:
        raise NotImplementedError

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return self.changed(super().fabric_pass(message, rounds, timeout_s, upset))


@mutant(of="PREF-03", case="1-mib-on-4", says="busbw / algbw is 0.7500 over 4 ranks, expected 1.5000")
@mutant(of="PREF-03", case="1-mib-on-2", says="busbw / algbw is 0.5000 over 2 ranks, expected 1.0000")
class CountsTheBusAsForAllGather(_Passes):
    """Uses the factor of an all-gather, (n − 1)/n, for an all-reduce."""

    def changed(self, found: FabricPass) -> FabricPass:
        return replace(found, busbw=found.algbw * (found.ranks - 1) / found.ranks)


@mutant(of="PREF-03", case="3-mib-on-3", says="busbw / algbw is 2.0000 over 3 ranks, expected 1.3333")
class CountsALargeWorldsBus(_Passes):
    """Uses 2, the factor's limit in a large world, which overstates busbw on three ranks by half."""

    def changed(self, found: FabricPass) -> FabricPass:
        return replace(found, busbw=found.algbw * 2)


@mutant(of="PREF-03", case="one-element-on-4", says="algbw is")
class TakesTheBestRound(_Passes):
    """Reports the fastest round, so a link that stalls now and then is never seen."""

    def changed(self, found: FabricPass) -> FabricPass:
        algbw = found.message / min(found.seconds) / 1e9
        return replace(found, algbw=algbw, busbw=algbw * 2 * (found.ranks - 1) / found.ranks)


@mutant(of="PREF-03", case="one-element-on-4", says="10 rounds were kept, asked for 7")
class KeepsItsWarmUp(Reference):
    """Counts the warm-up rounds that build rings and buffers."""

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return super().fabric_pass(message, rounds + 3, timeout_s, upset)


@mutant(of="PREF-03b", case="on-rank-2-of-4", says="accepts the sum, though rank 2")
class ReportsWithoutLooking(_Passes):
    """Reports every pass that ends as correct."""

    def changed(self, found: FabricPass) -> FabricPass:
        return replace(found, right=bool(found.seconds))


@mutant(of="PREF-03b", case="on-the-first-of-4", says="rank 1 of 4 accepts the sum, though rank 0")
class LooksOnRankZeroAlone(_Passes):
    """Only rank 0 checks its sum; the others report theirs as correct."""

    def changed(self, found: FabricPass) -> FabricPass:
        return found if here().rank == 0 else replace(found, right=bool(found.seconds))


@mutant(of="PREF-03b", case="on-the-first-of-4", says="accepts the sum, though rank 0")
class LooksAtTheFirstElement(Reference):
    """Checks only element 0 of the sum, while a broken link damages the end of a message."""

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return super().fabric_pass(message, rounds, timeout_s, replace(upset, offset=0.0))


@mutant(of="PREF-03c", case="rank-0-of-3", says="the limit is 0.5 s")
class WaitsForEver(Reference):
    """Runs on the default group with its 30-minute timeout and ignores the requested limit."""

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return super().fabric_pass(message, rounds, 60.0, upset)


@mutant(of="PREF-03c", case="rank-0-of-3", says="of a pass that rank 0 did not join")
class GivesUpAndCallsItGood(Reference):
    """Reports a pass that ran out of time as correct."""

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        found = super().fabric_pass(message, rounds, timeout_s, upset)
        return found if found.seconds else replace(found, right=True)


@mutant(of="PREF-03a", case="just-below-the-floor", says="is called fit")
class ForgivesOnePercent(Reference):
    """Allows one percent below the floor, which is a lower floor."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        floor = None if measured.floor is None else measured.floor * 0.99
        return super().fabric_reasons(replace(measured, floor=floor))


@mutant(of="PREF-03a", case="slow-but-for-one-round", says="is called fit")
class JudgesTheBestRound(Reference):
    """Compares the fastest round with the floor."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        return super().fabric_reasons(replace(measured, seconds=measured.seconds and (min(measured.seconds),)))


@mutant(of="PREF-03a", case="one-slow-round-of-three", says="is refused")
class JudgesTheWorstRound(Reference):
    """Over-correction: judges the slowest round, so one round beside another job refuses the node."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        return super().fabric_reasons(replace(measured, seconds=measured.seconds and (max(measured.seconds),)))


@mutant(of="PREF-03a", case="fast-and-wrong", says="is called fit")
class JudgesSpeedAlone(Reference):
    """Judges only the speed and ignores whether the sum was correct."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        return super().fabric_reasons(replace(measured, right=True))


@mutant(of="PREF-03a", case="no-floor-set", says="is called fit")
class PassesWhatHasNoFloor(Reference):
    """Passes every measurement when no floor is set."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        return super().fabric_reasons(replace(measured, floor=measured.floor or 0.0))
