"""GATE: what counts as a difference. A verdict must not depend on how one machine rounds.

`python -m benchmarks.machines` compares the verdicts on the reference on variations of a machine. The contracts here
judge its basis: the comparison of tensors, on numbers where a relative error divides by almost zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from contracts import instruments
from contracts.contract import contract
from contracts.spec.array import Arrays, Element
from contracts.spec.stack import CourtOfNumbers

Tensors = Mapping[str, tuple[float, ...]]
ONES = {"wo": (1.0, -1.0, 1.0, 1.0)}
ALIKE: dict[str, tuple[Element, Tensors, Tensors]] = {  # dtype, what was computed, what is expected
    "a-zero-of-terms-that-cancel": ("float64", ONES | {"k_norm": (3e-16, -2e-16)}, ONES | {"k_norm": (0.0, 0.0)}),
    "the-same-in-float32": ("float32", ONES | {"k_norm": (2e-7, -1e-7)}, ONES | {"k_norm": (0.0, 0.0)}),
    "one-element": ("float64", {"w": (1 + 2**-52,)}, {"w": (1.0,)}),
    "zeros": ("float64", {"w": (0.0, -0.0)}, {"w": (0.0, 0.0)}),
    "denormals": ("float64", {"w": (5e-324, 1e-310)}, {"w": (5e-324, 1e-310)}),
    "no-square-is-a-number": ("float64", {"w": (1e-200, 2e-200)}, {"w": (1e-200, 2e-200 * (1 + 2**-52))}),
    "every-square-is-infinite": ("float64", {"w": (1e300, 2e300)}, {"w": (1e300, 2e300 * (1 + 2**-52))}),
    "mixed-sizes": ("float64", {"w": (1e-12, 1.0)}, {"w": (1e-12 + 1e-16, 1.0)}),
    "nothing": ("float64", {"w": ()}, {"w": ()}),
}
UNLIKE: dict[str, tuple[Element, Tensors, Tensors, str]] = {  # … and the words
    "beside-a-zero": ("float64", ONES | {"k_norm": (1e-3, 0.0)}, ONES | {"k_norm": (0.0, 0.0)}, "k_norm differs"),
    "zeros-alone": ("float64", {"w": (1e-9, 0.0)}, {"w": (0.0, 0.0)}, "w differs"),
    "half-of-a-small-one": ("float64", ONES | {"b": (5e-7, 5e-7)}, ONES | {"b": (1e-6, 1e-6)}, "b differs"),
    "the-same-in-float32": ("float32", ONES | {"b": (5e-5, 5e-5)}, ONES | {"b": (1e-4, 1e-4)}, "b differs"),
    "one-element": ("float64", {"w": (1.0001,)}, {"w": (1.0,)}, "w differs"),
    "no-square-is-a-number": ("float64", {"w": (1e-200, 4e-200)}, {"w": (1e-200, 2e-200)}, "w differs"),
    "every-square-is-infinite": ("float64", {"w": (1e300, 4e300)}, {"w": (1e300, 2e300)}, "w differs"),
    "not-a-number": ("float64", {"w": (math.nan, 1.0)}, {"w": (1.0, 1.0)}, "w is not finite"),
    "infinite-on-both-sides": ("float64", {"w": (math.inf, 1.0)}, {"w": (math.inf, 1.0)}, "w is not finite"),
    "a-name-that-one-side-lacks": ("float64", ONES, ONES | {"w": (1.0,)}, "gradient lacks w"),
}


@contract("GATE-15a", asks="differences", cases=ALIKE, source="law: GATE-15")
def rounding_is_no_difference(court: CourtOfNumbers, element: Element, got: Tensors, want: Tensors) -> None:
    """Rounding from another summation order is not a difference, whatever the size of the numbers: an exact zero where
    large terms cancel, a single element, or numbers whose squares underflow.

    The gradient of one token through the norm of its keys is exactly zero. A machine that computed 3e-16 was reported
    as infinitely wrong, and the whole gate was red on every CPU of its kind.
    """
    words = court.differences(_arrays(element, got), _arrays(element, want))
    assert not words, f"rounding is reported as a difference: {words}"


@contract("GATE-15b", asks="differences", cases=UNLIKE, source="law: GATE-15")
def a_fault_is_a_difference(court: CourtOfNumbers, element: Element, got: Tensors, want: Tensors, words: str) -> None:
    """The error of a fault is a difference, reported with its tensor's name, even next to tensors a million times as
    large and where zero is expected.

    An absolute floor under every tolerance avoids the division by zero and opens the next hole: a floor as large as a
    fault hides it.
    """
    found = court.differences(_arrays(element, got), _arrays(element, want))
    assert words in found, f"got {dict(got)}, expected {dict(want)}, and the comparison reports {found or 'nothing'!r}"


def _arrays(element: Element, tensors: Tensors) -> Arrays:
    import torch

    numerics = instruments.numerics
    kind = getattr(torch, element)
    return numerics.arrays({name: torch.tensor(each, dtype=kind) for name, each in tensors.items()})
