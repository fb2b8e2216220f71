"""Comparisons that mistake rounding for a fault, or a fault for rounding."""

from contracts import instruments
from contracts.court.court import Court
from contracts.mutants._support.broken import broken
from contracts.spec.tolerance import FLOAT64


@broken(
    Court, "differences", "GATE-15a[a-zero-of-terms-that-cancel]: rounding is reported as a difference: gradient k_norm"
)
def divides_by_a_zero(differences, self, got, want):
    """Scales each tensor by its own size: the remainder of large terms that cancel is infinitely far from zero."""
    return instruments.numerics.differences("gradient", got, want, FLOAT64)


@broken(Court, "differences", "GATE-15a[no-square-is-a-number]: rounding is reported as a difference: gradient w")
def compares_bits(differences, self, got, want):
    """Compares small numbers bit for bit."""
    exact = (name for name in want if got.get(name) != want[name])
    return next((f"gradient {name} differs" for name in exact), "")


@broken(Court, "differences", "GATE-15b[half-of-a-small-one]: and the comparison reports 'nothing'")
def a_floor_as_large_as_a_fault(differences, self, got, want):
    """Uses an absolute tolerance, so nothing below a millionth of the largest value is compared."""
    numerics = instruments.numerics
    scale = numerics.scale_of(want) * 1e10
    return numerics.differences("gradient", got, want, FLOAT64, scale=scale)


@broken(Court, "differences", "GATE-15b[no-square-is-a-number]: and the comparison reports 'nothing'")
def squares_vanish(differences, self, got, want):
    """The squares of small numbers underflow, and a tensor of norm zero is not compared."""
    held = instruments.numerics.tensors(want)
    told = {name: each for name, each in want.items() if float(held[name].square().sum()) > 0}
    return differences(self, {name: got[name] for name in told}, told)


@broken(Court, "differences", "GATE-15b[not-a-number]: and the comparison reports 'nothing'")
def not_a_number_is_no_fault(differences, self, got, want):
    """An error of NaN exceeds no bound."""
    words = differences(self, got, want)
    return "" if "not finite" in words else words


@broken(Court, "differences", "GATE-15b[a-name-that-one-side-lacks]: and the comparison reports 'nothing'")
def compares_what_both_have(differences, self, got, want):
    """Compares only names that both sides have, so a missing gradient is not compared."""
    both = got.keys() & want.keys()
    return differences(self, *({name: side[name] for name in both} for side in (got, want)))
