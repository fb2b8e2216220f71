"""Courts that take rounding for a fault, or a fault for rounding."""

from __future__ import annotations

from contracts import instruments
from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.array import Arrays
from contracts.spec.tolerance import FLOAT64


@mutant(of="GATE-15a", case="a-zero-of-terms-that-cancel", says="rounding is called a difference: gradient k_norm")
class DividesByAZero(Court):
    """Each tensor by its own size alone: what was left of large terms that cancel is infinitely far from zero."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        return instruments.numerics.named_apart("gradient", got, want, FLOAT64)


@mutant(of="GATE-15a", case="no-square-is-a-number", says="rounding is called a difference: gradient w")
class ComparesBits(Court):
    """Small numbers are held against each other to the bit."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        exact = (name for name in want if got.get(name) != want[name])
        return next((f"gradient {name} differs" for name in exact), "")


@mutant(of="GATE-15b", case="half-of-a-small-one", says="is expected the court says 'nothing'")
class AFloorAsLargeAsAFault(Court):
    """An absolute tolerance: what is smaller than a millionth of the largest is not looked at."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        numerics = instruments.numerics
        scale = numerics.scale_of(want) * 1e10
        return numerics.named_apart("gradient", got, want, FLOAT64, scale=scale)


@mutant(of="GATE-15b", case="no-square-is-a-number", says="is expected the court says 'nothing'")
class SquaresVanish(Court):
    """The norm of what is small is computed by squares that are zero, and a tensor of norm zero is not compared."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        held = instruments.numerics.tensors(want)
        told = {name: each for name, each in want.items() if float(held[name].square().sum()) > 0}
        return super().differences({name: got[name] for name in told}, told)


@mutant(of="GATE-15b", case="not-a-number", says="is expected the court says 'nothing'")
class NotANumberIsNoFault(Court):
    """An error that is not a number is over no bound."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        words = super().differences(got, want)
        return "" if "not finite" in words else words


@mutant(of="GATE-15b", case="a-name-that-one-side-lacks", says="is expected the court says 'nothing'")
class ComparesWhatBothHave(Court):
    """A gradient that is missing is compared with nothing."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        both = got.keys() & want.keys()
        return super().differences(*({name: side[name] for name in both} for side in (got, want)))
