"""Stacks whose measurement of the fabric says more than was measured, or whose ranks see other devices."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.instruments.ranks import here
from contracts.spec.world import FabricPass, Upset
from contracts.stacks.reference.stack import Reference


class _Passes(Reference):
    """What a pass says, changed on its way out."""

    def changed(self, found: FabricPass) -> FabricPass:
        raise NotImplementedError

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return self.changed(super().fabric_pass(message, rounds, timeout_s, upset))


@mutant(of="PREF-03", case="1-mib-on-4", says="busbw / algbw is 0.7500 over 4 ranks, expected 1.5000")
@mutant(of="PREF-03", case="1-mib-on-2", says="busbw / algbw is 0.5000 over 2 ranks, expected 1.0000")
class CountsTheBusAsForAllGather(_Passes):
    """Takes the factor of an all-gather, (n − 1)/n, for that of an all-reduce."""

    def changed(self, found: FabricPass) -> FabricPass:
        return replace(found, busbw=found.algbw * (found.ranks - 1) / found.ranks)


@mutant(of="PREF-03", case="3-mib-on-3", says="busbw / algbw is 2.0000 over 3 ranks, expected 1.3333")
class CountsALargeWorldsBus(_Passes):
    """Two, the factor's limit in a large world: on three ranks it flatters by half."""

    def changed(self, found: FabricPass) -> FabricPass:
        return replace(found, busbw=found.algbw * 2)


@mutant(of="PREF-03", case="one-element-on-4", says="algbw is")
class TakesTheBestRound(_Passes):
    """The fastest round stands for the pass: a link that stalls now and then is never seen."""

    def changed(self, found: FabricPass) -> FabricPass:
        algbw = found.message / min(found.seconds) / 1e9
        return replace(found, algbw=algbw, busbw=algbw * 2 * (found.ranks - 1) / found.ranks)


@mutant(of="PREF-03", case="one-element-on-4", says="10 rounds were kept, asked for 7")
class KeepsItsWarmUp(Reference):
    """The rounds that build rings and buffers count too."""

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return super().fabric_pass(message, rounds + 3, timeout_s, upset)


@mutant(of="PREF-03b", case="on-rank-2-of-4", says="calls the sum right, though rank 2")
class ReportsWithoutLooking(_Passes):
    """A pass that came to its end is right."""

    def changed(self, found: FabricPass) -> FabricPass:
        return replace(found, right=bool(found.seconds))


@mutant(of="PREF-03b", case="on-the-first-of-4", says="rank 1 of 4 calls the sum right, though rank 0")
class LooksOnRankZeroAlone(_Passes):
    """Rank 0 looks at its sum; the others believe theirs."""

    def changed(self, found: FabricPass) -> FabricPass:
        return found if here().rank == 0 else replace(found, right=bool(found.seconds))


@mutant(of="PREF-03b", case="on-the-first-of-4", says="calls the sum right, though rank 0")
class LooksAtTheFirstElement(Reference):
    """Checks element 0 of the sum; what a broken link does to the end of a message stays."""

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return super().fabric_pass(message, rounds, timeout_s, replace(upset, offset=0.0))


@mutant(of="PREF-03c", case="rank-0-of-3", says="the limit is 0.5 s")
class WaitsForEver(Reference):
    """The pass runs on the default group and its half hour; the limit that was asked for is not set anywhere."""

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return super().fabric_pass(message, rounds, 60.0, upset)


@mutant(of="PREF-03c", case="rank-0-of-3", says="for which rank 0 stayed away")
class GivesUpAndCallsItGood(Reference):
    """A pass that ran out of time is reported as if it had been one."""

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        found = super().fabric_pass(message, rounds, timeout_s, upset)
        return found if found.seconds else replace(found, right=True)


@mutant(of="PREF-03a", case="just-below-the-floor", says="is called fit")
class ForgivesOnePercent(Reference):
    """A floor with a tolerance is a lower floor."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        floor = None if measured.floor is None else measured.floor * 0.99
        return super().fabric_reasons(replace(measured, floor=floor))


@mutant(of="PREF-03a", case="slow-but-for-one-round", says="is called fit")
class JudgesTheBestRound(Reference):
    """The fastest round is compared with the floor."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        return super().fabric_reasons(replace(measured, seconds=measured.seconds and (min(measured.seconds),)))


@mutant(of="PREF-03a", case="one-slow-round-of-three", says="is refused")
class JudgesTheWorstRound(Reference):
    """Over-correction: one round in which something else ran on the node takes the node out."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        return super().fabric_reasons(replace(measured, seconds=measured.seconds and (max(measured.seconds),)))


@mutant(of="PREF-03a", case="fast-and-wrong", says="is called fit")
class JudgesSpeedAlone(Reference):
    """Fast is fit; whether the sum was right stands in another column."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        return super().fabric_reasons(replace(measured, right=True))


@mutant(of="PREF-03a", case="no-floor-set", says="is called fit")
class PassesWhatHasNoFloor(Reference):
    """Where no floor is set, anything reaches it."""

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        return super().fabric_reasons(replace(measured, floor=measured.floor or 0.0))
