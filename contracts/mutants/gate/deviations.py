"""Verdict code whose deviations forgive more, or less, than they say."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.array import Arrays
from contracts.spec.records import Result, Run, Verdict, Violation


@mutant(of="GATE-10a", case="other-words", says="verdict is conformant, expected violated")
class ADeviationIsACase(Court):
    """A deviation is an id and a case, and forgives whatever breaks there."""

    def verdict(self, run: Run, today: str) -> Verdict:
        wide = tuple(replace(each, says="*", tensors=()) for each in run.deviations)
        plain = tuple(replace(each, violations=()) for each in run.results)
        return super().verdict(replace(run, deviations=wide, results=plain), today)


def _first(result: Result) -> Result:
    return replace(result, violations=result.violations[:1])


@mutant(of="GATE-10a", case="one-more", says="verdict is conformant, expected violated")
class TheFirstViolationDecides(Court):
    """Compares the deviation with the first thing that is wrong, and forgives the rest."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return super().verdict(replace(run, results=tuple(map(_first, run.results))), today)


@mutant(of="GATE-10a", case="one-tensor-more", says="verdict is conformant, expected violated")
class TensorsAreNotRead(Court):
    """Reads the words of a deviation and forgives every tensor that differs."""

    def verdict(self, run: Run, today: str) -> Verdict:
        wide = tuple(replace(each, tensors=("*",) if each.tensors else ()) for each in run.deviations)
        return super().verdict(replace(run, deviations=wide), today)


@mutant(of="GATE-10a", case="no-words", says="verdict is conformant, expected violated")
class NoWordsAreAnyWords(Court):
    """An entry that names no words is read as it was before there were words."""

    def verdict(self, run: Run, today: str) -> Verdict:
        wide = tuple(replace(each, says=each.says or "*") for each in run.deviations)
        return super().verdict(replace(run, deviations=wide), today)


@mutant(of="GATE-10a", case="any-number", says="verdict is violated, expected conformant")
class NumbersAreWords(Court):
    """Over-correction: `#` is a character, so that an entry holds for one machine's rounding."""

    def verdict(self, run: Run, today: str) -> Verdict:
        exact = tuple(replace(each, says=each.says.replace("#", "number")) for each in run.deviations)
        return super().verdict(replace(run, deviations=exact), today)


@mutant(of="GATE-10b", case="not-offered", says="verdict is conformant, expected violated")
class ACaseThatIsGoneIsQuiet(Court):
    """Keeps a deviation whose case the stack declines now."""

    def verdict(self, run: Run, today: str) -> Verdict:
        judged = super().verdict(run, today)
        faults = tuple(fault for fault in judged.faults if "no longer offered" not in fault.words)
        return replace(judged, faults=faults, word=judged.word if faults else "conformant")


@mutant(of="GATE-10b", case="of-another-device", says="verdict is violated, expected conformant")
class EveryDeviceIsThisOne(Court):
    """Over-correction: an entry about GPUs is red wherever there is none."""

    def verdict(self, run: Run, today: str) -> Verdict:
        here = tuple(replace(each, device="") for each in run.deviations)
        return super().verdict(replace(run, deviations=here), today)


@mutant(of="GATE-10b", case="fails-on-this-device", says="verdict is conformant, expected violated")
class AnotherDeviceForgivesHere(Court):
    """What was declared for GPUs is forgiven on a CPU too."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return EveryDeviceIsThisOne().verdict(run, today)


@mutant(of="GATE-10b", case="of-another-version", says="verdict is violated, expected conformant")
class EveryVersionIsThisOne(Court):
    """Over-correction: what an earlier version did wrong has to be wrong in this one."""

    def verdict(self, run: Run, today: str) -> Verdict:
        all_versions = tuple(replace(each, versions=()) for each in run.deviations)
        return super().verdict(replace(run, deviations=all_versions), today)


@mutant(of="GATE-10b", case="fails-in-this-version", says="verdict is conformant, expected violated")
class AnotherVersionForgivesHere(Court):
    """What was declared for an earlier version is forgiven in a later one."""

    def verdict(self, run: Run, today: str) -> Verdict:
        return EveryVersionIsThisOne().verdict(run, today)


@mutant(of="GATE-10c", case="five", says="the violation names ['a', 'b', 'c'], expected")
class AViolationIsItsWords(Court):
    """A violation carries the three tensors that its words have room for."""

    def parts(self, got: Arrays, want: Arrays) -> tuple[Violation, ...]:
        return super().parts(got, want)[:3]


@mutant(of="GATE-10c", case="lacking", says="the violation names ['a'], expected")
class MissingTensorsHaveNoName(Court):
    """Compares the tensors that both sides have."""

    def parts(self, got: Arrays, want: Arrays) -> tuple[Violation, ...]:
        return super().parts(got, {name: each for name, each in want.items() if name in got})
