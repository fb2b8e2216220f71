"""Named tolerances: relative distances, each with its reason. A tolerance without a reason is a wish.

Three distances are bounded by one number: L2 of the whole, the largest element over the largest expected, and the worst
row over the typical element (`instruments.numerics.distances`). Percentiles and masks are not used: the 95th percentile
of upstream Mamba-3 tests passes a zeroed token.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """A bound on relative distances, with the reason for its size."""

    name: str
    bound: float
    why: str


EXACT = Tolerance(name="exact", bound=0.0, why="the same operations in the same order, or a zero that must be one")
FLOAT64 = Tolerance(name="float64", bound=1e-12, why="rounding of 2^-53 over thousands of terms stays below")
FLOAT64_SCAN = Tolerance(name="float64 scan", bound=1e-10, why="gradients of a scan divide by small decays")
FLOAT32 = Tolerance(name="float32", bound=2e-6, why="32 units of 2^-24; a wrong term was never seen under 1e-3")
FLOAT32_SCAN = Tolerance(name="float32 scan", bound=1e-5, why="gradients of scans and biases sum over every token")
FLOAT32_LAYOUT = Tolerance(
    name="float32 layout", bound=5e-6, why="sums in another order differ by 5e-7; real layout faults start at 1e-2"
)
BFLOAT16 = Tolerance(name="bfloat16", bound=1e-2, why="units of 2^-9 over sums accumulated in float32")
BFLOAT16_MEAN = Tolerance(
    name="bfloat16 mean",
    bound=3e-2,
    why="a mean over hundreds of drawn values is small beside what was rounded in them",
)
