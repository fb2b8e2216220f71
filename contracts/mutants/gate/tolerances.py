"""Comparisons that mistake rounding for a fault, or a fault for rounding."""

from __future__ import annotations

from contracts import instruments
from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.array import Arrays
from contracts.spec.tolerance import FLOAT64


@mutant(of="GATE-15a", case="a-zero-of-terms-that-cancel", says="rounding is reported as a difference: gradient k_norm")
class DividesByAZero(Court):
    """Scales each tensor by its own size: the remainder of large terms that cancel is infinitely far from zero."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        return instruments.numerics.differences("gradient", got, want, FLOAT64)


@mutant(of="GATE-15a", case="no-square-is-a-number", says="rounding is reported as a difference: gradient w")
class ComparesBits(Court):
    """Compares small numbers bit for bit."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        exact = (name for name in want if got.get(name) != want[name])
        return next((f"gradient {name} differs" for name in exact), "")


@mutant(of="GATE-15b", case="half-of-a-small-one", says="and the comparison reports 'nothing'")
class AFloorAsLargeAsAFault(Court):
    """Uses an absolute tolerance, so nothing below a millionth of the largest value is compared."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        numerics = instruments.numerics
        scale = numerics.scale_of(want) * 1e10
        return numerics.differences("gradient", got, want, FLOAT64, scale=scale)


@mutant(of="GATE-15b", case="no-square-is-a-number", says="and the comparison reports 'nothing'")
class SquaresVanish(Court):
    """The squares of small numbers underflow, and a tensor of norm zero is not compared."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        held = instruments.numerics.tensors(want)
        told = {name: each for name, each in want.items() if float(held[name].square().sum()) > 0}
        return super().differences({name: got[name] for name in told}, told)


@mutant(of="GATE-15b", case="not-a-number", says="and the comparison reports 'nothing'")
class NotANumberIsNoFault(Court):
    """An error of NaN exceeds no bound."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        words = super().differences(got, want)
        return "" if "not finite" in words else words


@mutant(of="GATE-15b", case="a-name-that-one-side-lacks", says="and the comparison reports 'nothing'")
class ComparesWhatBothHave(Court):
    """Compares only names that both sides have, so a missing gradient is not compared."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        both = got.keys() & want.keys()
        return super().differences(*({name: side[name] for name in both} for side in (got, want)))
