"""Every numeric comparison, from both sides: what rounding does is never a difference, what a fault does always is.

Inputs are those on which relative errors divide by nothing or by next to nothing: exact zeros, single elements, powers
of two from the smallest number of a dtype to its largest, and tensors that hold all of these at once.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contracts.instruments import fixtures, half_precision, numerics
from contracts.law._support import small_models, step_comparison
from contracts.spec import (
    FLOAT32,
    FLOAT32_TRANSFORMER,
    FLOAT64,
    FLOAT64_SCAN,
    HALF_GRADIENT,
    Arrays,
    Step,
    Tolerance,
    heard,
    parts_of,
)
from contracts.spec.records import Violation

SHAPES = ((), (1,), (7,), (1, 1), (3, 5), (1, 8), (6, 1))
TOLERANCES: dict[torch.dtype, Tolerance] = {torch.float64: FLOAT64, torch.float32: FLOAT32}
SIZES = {  # of the largest element; the smallest is a denormal
    torch.float64: (5e-324, 1e-310, 1e-200, 1e-30, 1.0, 1e30, 1e200, 1e307),
    torch.float32: (1e-45, 1e-40, 1e-30, 1.0, 1e30, 1e38),
}
KINDS = ("zeros", "one element", "mixed", "drawn", "all alike")


def _drawn(kind: str, shape: tuple[int, ...], dtype: torch.dtype, size: float) -> Tensor:
    drawn = fixtures.normal(f"{kind}{shape}", shape)
    drawn = drawn / (drawn.abs().max() or 1)
    if kind == "zeros":
        return torch.zeros(shape, dtype=dtype)
    if kind == "all alike":
        return torch.full(shape, size, dtype=dtype)
    if kind == "one element":
        alone = torch.zeros(shape, dtype=torch.float64)
        alone.view(-1)[-1] = 1.0
        drawn = alone
    if kind == "mixed":
        drawn = drawn * torch.logspace(-12, 0, drawn.numel(), dtype=torch.float64).reshape(shape)
    return (drawn * size).to(dtype)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(tuple(TOLERANCES)))
    return _drawn(
        draw(st.sampled_from(KINDS)), draw(st.sampled_from(SHAPES)), dtype, draw(st.sampled_from(SIZES[dtype]))
    )


@given(tensors())
def test_rounding_beside_larger_terms_is_no_difference(want: Tensor) -> None:
    """A result known to some ulps of the terms that went into it, whatever is left of it."""
    scale = max(numerics.typical_size(want), float(torch.finfo(want.dtype).tiny))
    rounding = 2 * torch.finfo(want.dtype).eps * scale
    signs = (1 - 2 * (torch.arange(want.numel()) % 2)).double().reshape(want.shape)
    got = (want.double() + rounding * signs).to(want.dtype)
    assert numerics.difference("t", got, want, TOLERANCES[want.dtype], scale=scale) == ""


@given(tensors())
def test_an_element_off_by_a_visible_part_is_a_difference(want: Tensor) -> None:
    """Of the largest element, which is what a lost or doubled term is off by."""
    tolerance, largest = TOLERANCES[want.dtype], float(want.abs().max())
    got = want.clone()
    at = int(want.abs().argmax())
    got.view(-1)[at] = want.view(-1)[at] * (1 + 100 * tolerance.bound) if largest else 1e-3
    if float((got - want).abs().max()) == 0:
        return  # a denormal has no such neighbour
    assert "t differs" in numerics.difference("t", got, want, tolerance)
    assert "t differs" in numerics.difference("t", got, want, tolerance, scale=largest)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_an_expected_zero_may_be_off_by_the_rounding_of_its_terms(dtype: torch.dtype) -> None:
    """An exact zero was once expected of sums that cancel: 3e-16 was then an infinite relative error."""
    want, eps = torch.zeros(8, dtype=dtype), torch.finfo(dtype).eps
    tolerance = TOLERANCES[dtype]
    assert numerics.difference("t", want + 3 * eps, want, tolerance, scale=1.0) == ""
    words = numerics.difference("t", want + 100 * eps, want, tolerance, scale=1.0)
    assert "rounding of terms of size 1.0e+00" in words
    assert "expected 0" in words
    assert "inf over" in numerics.difference("t", want + 3 * eps, want, tolerance), (
        "no scale was told: a zero is a zero"
    )


@given(tensors())
def test_the_typical_size_is_right_if_squares_overflow_or_underflow(want: Tensor) -> None:
    size, largest = numerics.typical_size(want), float(want.abs().max())
    assert math.isfinite(size)
    assert 0 <= size <= largest * (1 + 1e-12)
    assert size >= largest / math.sqrt(want.numel()) * (1 - 1e-6)


def test_one_wrong_row_of_4000_is_a_difference() -> None:
    want = fixtures.normal("rows", (4000, 8))
    got = want.clone()
    got[7] = 0
    apart = numerics.distances(got, want)
    assert apart["L2"].relative < 0.1
    assert apart["row"].relative * numerics.ROW_ALLOWANCE > 0.5


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_half_precision_error_is_compared_with_the_controls_where_zero_is_expected(shape: tuple[int, ...]) -> None:
    """A control that is off by a rounding where nothing is expected judges what is as far off, and not by a cap."""
    want, scale = torch.zeros(shape, dtype=torch.float64), 1.0
    control = want + 2**-10
    assert half_precision.excess_error("g", (want + 2**-10).bfloat16(), want, control, HALF_GRADIENT, scale=scale) == ""
    assert "g differs" in half_precision.excess_error(
        "g", (want + 2**-4).bfloat16(), want, control, HALF_GRADIENT, scale=scale
    )
    exact = want + 0.0
    assert half_precision.excess_error("g", exact.bfloat16(), want, exact, HALF_GRADIENT) == ""


@pytest.mark.parametrize(
    ("losses", "tolerance"),
    [(step_comparison.loss_difference, FLOAT64_SCAN), (small_models.loss_difference, FLOAT32_TRANSFORMER)],
)
@given(loss=st.sampled_from((0.0, 1e-300, 1.0, 50.0)))
def test_two_steps_agree_only_up_to_rounding(losses: Any, tolerance: Tolerance, loss: float) -> None:
    """A step compared with the one on one rank, in float64 and in float32: losses of zero, a gradient of zero."""
    zero = numerics.arrays({"a": torch.ones(5).double(), "b": torch.zeros(5).double()})
    near = numerics.arrays({"a": torch.ones(5).double(), "b": torch.full((5,), 4e-16).double()})
    far = numerics.arrays({"a": torch.ones(5).double(), "b": torch.full((5,), 1e-3).double()})
    one, alike, other = (_step(loss + off, held) for off, held in ((0.0, zero), (1e-16, near), (1e-2, far)))
    gradients = functools.partial(step_comparison.gradient_differences, tolerance=tolerance)
    assert losses(one, alike) == gradients(one, alike) == ""
    assert "total is" in losses(one, other)
    assert "the gradient of b differs" in gradients(one, other)


def _step(loss: float, gradients: Arrays) -> Step:
    return Step(
        number=1,
        losses={"total": loss},
        tokens=4,
        samples=(),
        lr=0.1,
        grad_norm=1.0,
        clip_coef=1.0,
        gradients=gradients,
    )  # type: ignore[arg-type]


def test_a_weight_that_should_not_move_may_move_by_its_rounding_only() -> None:
    start = numerics.arrays({"w": torch.ones(4)})
    still, rounded, moved = (numerics.arrays({"w": torch.ones(4) + off}) for off in (0.0, 2.0**-23, 1e-3))
    assert step_comparison.update_difference(start, rounded, still, 5e-3) == ""
    assert "w moved differently" in step_comparison.update_difference(start, moved, still, 5e-3)


def test_gradients_are_named_in_the_order_of_the_backward_pass() -> None:
    names = (
        "embedding.weight", "layers.0.mixer.wq.weight", "layers.0.norm.weight", "layers.2.mixer.wo.weight",
        "layers.2.mixer.wq.weight", "layers.10.mixer.experts.w1", "layers.10.mixer.experts.w2", "norm.weight",
        "mtp.0.projection.weight", "mtp.1.norm.weight", "mtp.1.mlp.w2.weight", "head.weight",
    )  # fmt: skip
    assert numerics.backward_order(names) == [
        "head.weight", "mtp.1.mlp.w2.weight", "mtp.1.norm.weight", "mtp.0.projection.weight", "norm.weight",
        "layers.10.mixer.experts.w2", "layers.10.mixer.experts.w1", "layers.2.mixer.wo.weight",
        "layers.2.mixer.wq.weight", "layers.0.mixer.wq.weight", "layers.0.norm.weight", "embedding.weight",
    ]  # fmt: skip
    block = ["mixer.w2.weight", "mixer.w1.weight", "norm.weight", "x"]
    assert numerics.backward_order(reversed(block)) == block


def test_the_first_differing_gradient_is_named_with_the_number_that_agree_before_it() -> None:
    want = {
        name: torch.ones(2, dtype=torch.float64) for name in ("x", "norm.weight", "mixer.wo.weight", "mixer.wq.weight")
    }
    got = want | {name: 2 * want[name] for name in ("mixer.wq.weight", "norm.weight", "x")}
    words = numerics.gradient_differences("the gradient of", numerics.arrays(got), want, FLOAT64)
    assert [part.split(" differs")[0] for part in words.split("; ") if " differs" in part] == [
        "the gradient of mixer.wq.weight", "the gradient of norm.weight", "the gradient of x",
    ]  # fmt: skip
    assert words.endswith("; gradients made before the first, which agree: 1")
    lacking = numerics.arrays({name: got[name] for name in ("x", "norm.weight", "mixer.wq.weight")})
    assert numerics.gradient_differences("the gradient of", lacking, want, FLOAT64).startswith(
        "the gradient of lacks mixer.wo.weight; the gradient of mixer.wq.weight differs"
    )


Element = Literal["float64", "float32"]
Numbers = Mapping[str, tuple[float, ...]]
ONES = {"wo": (1.0, -1.0, 1.0, 1.0)}
ALIKE: dict[str, tuple[Element, Numbers, Numbers]] = {  # dtype, what was computed, what is expected
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
UNLIKE: dict[str, tuple[Element, Numbers, Numbers, str]] = {  # … and the words
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


def compared(got: Arrays, want: Arrays) -> str:
    """How the gradients of one pass differ from those that are expected."""
    double = all(each.dtype == "float64" for each in want.values())
    return numerics.gradient_differences("gradient", got, want, FLOAT64 if double else FLOAT32)


Compare = Callable[[Arrays, Arrays], str]


def arrays(element: Element, held: Numbers) -> Arrays:
    return numerics.arrays({name: torch.tensor(each, dtype=getattr(torch, element)) for name, each in held.items()})


def takes_rounding(compare: Compare, name: str) -> None:
    element, got, want = ALIKE[name]
    words = compare(arrays(element, got), arrays(element, want))
    assert not words, f"rounding is reported as a difference: {words}"


@pytest.mark.parametrize("name", ALIKE)
def test_a_difference_of_rounding_size_passes(name: str) -> None:
    takes_rounding(compared, name)


def reports_a_fault(compare: Compare, name: str) -> None:
    element, got, want, words = UNLIKE[name]
    found = compare(arrays(element, got), arrays(element, want))
    assert words in found, f"expected {words!r}, and the comparison reports {found or 'nothing'!r}"


@pytest.mark.parametrize("name", UNLIKE)
def test_a_real_fault_is_a_difference(name: str) -> None:
    """An absolute floor under every tolerance avoids the division by zero, and hides a fault as large as the floor."""
    reports_a_fault(compared, name)


SIDES: dict[str, tuple[str, str, str]] = {  # tensors that are expected, those that differ, those that are missing
    "one": ("ab", "b", ""), "five": ("abcde", "abcde", ""), "five of seven": ("abcdefg", "acdfg", ""),
    "missing": ("abcde", "a", "be"),
}  # fmt: skip


def parts(got: Arrays, want: Arrays) -> tuple[Violation, ...]:
    with heard() as comparisons:
        words = compared(got, want)
    return parts_of(AssertionError(words), comparisons)


def names_each(of: Callable[[Arrays, Arrays], tuple[Violation, ...]], name: str) -> None:
    names, wrong, missing = SIDES[name]
    want = arrays("float64", dict.fromkeys(names, (1.0, -2.0)))
    off = arrays("float64", dict.fromkeys(wrong, (1.5, -2.0)))
    found = of({each: off.get(each, want[each]) for each in names if each not in missing}, want)
    assert sorted(each.tensor for each in found) == sorted(wrong + missing)
    for part in found:
        assert {each for each in names if f" {each} " in f"{part.words} "} == {part.tensor}


@pytest.mark.parametrize("name", SIDES)
def test_every_tensor_that_differs_is_named(name: str) -> None:
    names_each(parts, name)


def by_its_own_size(got: Arrays, want: Arrays) -> str:
    return numerics.differences("gradient", got, want, FLOAT64)


def beside_a_floor(got: Arrays, want: Arrays) -> str:
    return numerics.differences("gradient", got, want, FLOAT64, scale=numerics.scale_of(want) * 1e10)


def by_bits(got: Arrays, want: Arrays) -> str:
    return next((f"gradient {name} differs" for name in want if got.get(name) != want[name]), "")


def by_squares(got: Arrays, want: Arrays) -> str:
    held = [name for name, each in numerics.tensors(want).items() if float(each.square().sum()) > 0]
    return compared({name: got[name] for name in held}, {name: want[name] for name in held})


def without_nan(got: Arrays, want: Arrays) -> str:
    words = compared(got, want)
    return "" if "not finite" in words else words


def what_both_have(got: Arrays, want: Arrays) -> str:
    return compared(got, {name: each for name, each in want.items() if name in got})


BLUNT: dict[str, tuple[Callable[[], None], str]] = {  # a requirement of a comparison that is wrong, and its words
    "divides by a zero": (
        lambda: takes_rounding(by_its_own_size, "a-zero-of-terms-that-cancel"), "rounding is reported .* k_norm",
    ),
    "compares bits": (lambda: takes_rounding(by_bits, "no-square-is-a-number"), "rounding is reported .* gradient w"),
    "a floor as large as a fault": (lambda: reports_a_fault(beside_a_floor, "half-of-a-small-one"), "'nothing'"),
    "squares vanish": (lambda: reports_a_fault(by_squares, "no-square-is-a-number"), "'nothing'"),
    "NaN exceeds nothing": (lambda: reports_a_fault(without_nan, "not-a-number"), "'nothing'"),
    "compares what both have": (lambda: reports_a_fault(what_both_have, "a-name-that-one-side-lacks"), "'nothing'"),
    "names three tensors": (lambda: names_each(lambda *sides: parts(*sides)[:3], "five"), "'a', 'b', 'c'"),
    "names none that is missing": (
        lambda: names_each(lambda got, want: parts(got, {each: want[each] for each in got}), "missing"), "'a'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLUNT)
def test_the_tests_of_tolerances_fail_for_a_broken_comparison(name: str) -> None:
    requirement, words = BLUNT[name]
    with pytest.raises(AssertionError, match=words):
        requirement()
