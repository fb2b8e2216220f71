"""Named tolerances: bounds on relative distances, each with its reason.

One number bounds three distances: the L2 distance of the whole tensor, the largest error over the largest expected
element, and the worst row over the typical element (`instruments.numerics.distances`). There are no percentiles and no
masks: the 95th percentile in upstream Mamba-3 tests passes a zeroed token.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
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
FLOAT32_TRANSFORMER = Tolerance(
    name="float32 transformer", bound=2e-5, why="a norm's gradient sums terms that cancel: 6e-6 seen; faults from 1e-2"
)
FLOAT32_DEEP = Tolerance(
    name="float32 transformer of eight blocks", bound=2e-4,
    why="one rounding of every weight moves a gradient by 3.3e-5 of itself, and its norm by 6e-6; faults from 1e-2",
)  # fmt: skip
FLOAT32_MOMENTS = Tolerance(
    name="float32 moments", bound=4e-5, why="the square of a gradient is off by twice as much as the gradient"
)
FLOAT32_STEPS = Tolerance(
    name="float32 steps", bound=5e-4, why="a move is the difference of two weights, each rounded to 2^-24 of itself"
)
BFLOAT16 = Tolerance(name="bfloat16", bound=1e-2, why="units of 2^-9 over sums accumulated in float32")
BFLOAT16_MEAN = Tolerance(
    name="bfloat16 mean",
    bound=3e-2,
    why="a mean over hundreds of drawn values is small beside what was rounded in them",
)

_IN_FLOAT32: Mapping[str, Tolerance] = {FLOAT64.name: FLOAT32_TRANSFORMER, FLOAT64_SCAN.name: FLOAT32_STEPS}
_narrow: ContextVar[bool] = ContextVar("narrow", default=False)


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """While the block runs, a case that asks in float64 is judged by what float32 gives."""
    token = _narrow.set(True)
    try:
        yield
    finally:
        _narrow.reset(token)


def here(tolerance: Tolerance) -> Tolerance:
    """The tolerance of a comparison in the precision in which the stack is asked."""
    return _IN_FLOAT32.get(tolerance.name, tolerance) if _narrow.get() else tolerance


def within(float64: float, float32: float = FLOAT32_TRANSFORMER.bound) -> float:
    """A bound on a number, in the precision in which the stack is asked."""
    return float32 if _narrow.get() else float64


def element_bytes() -> int:
    """Of a number in the precision in which the stack is asked: 8, or 4 in float32."""
    return 4 if _narrow.get() else 8


@dataclass(frozen=True, kw_only=True)
class HalfPrecision:
    """The allowed error of a result in half precision (`instruments.half_precision`).

    Args:
        factor: the allowed error divided by the control's error.
        floor: one rounding of a stored value; a result within a smaller bound would be luck.
        cap: absolute bound, whatever the control's error. A control with an error beyond it judges nothing.
    """

    name: str
    factor: float
    floor: float
    cap: float
    why: str


HALF_OUTPUT = HalfPrecision(
    name="bfloat16 output", factor=2.0, floor=2**-9, cap=2e-2,
    why="products stored with 8 bits, summed in float32: 5e-3 were seen; what is lost or added twice is off by 1e-1",
)  # fmt: skip
HALF_GRADIENT = HalfPrecision(
    name="bfloat16 gradient",
    factor=3.0,
    floor=2**-9,
    cap=3e-2,
    why="passes through every product twice, and is a sum over tokens",
)
HALF_SCAN_GRADIENT = HalfPrecision(
    name="bfloat16 gradient of a scan",
    factor=4.0,
    floor=2**-9,
    cap=5e-2,
    why="of a number a head, or four a channel: sums over all tokens of terms that partly cancel; controls reach 2e-2",
)
