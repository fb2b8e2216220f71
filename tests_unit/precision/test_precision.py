"""Products in FP8 over drawn shapes, against their definition, torch's own casts and values by hand."""

from typing import Literal, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.instruments import fixtures, numerics
from contracts.instruments.oracles import low_precision as oracle
from contracts.spec import FLOAT64, Fp8
from contracts.stacks.reference.model.blocks.fp8 import DTYPES, LARGEST, Format, Fp8Matmul

SETTINGS = settings(max_examples=25)
SCALINGS = ("tensorwise", "delayed", "blockwise", "mxfp8")
FORMATS: tuple[Format, ...] = get_args(Format)

# Ties go to the even mantissa: 17 lies between 16 and 18 of e4m3, 19 between 18 and 20; 9 between 8 and 10 of e5m2.
BY_HAND: dict[tuple[Format, float], float] = {
    ("e4m3", 17.0): 16.0, ("e4m3", 19.0): 20.0, ("e4m3", 0.3): 0.3125, ("e4m3", -100.1): -104.0,
    ("e4m3", 2.0**-10): 0.0, ("e4m3", 3 * 2.0**-10): 2.0**-8, ("e4m3", 500.0): 448.0, ("e4m3", -1e9): -448.0,
    ("e5m2", 9.0): 8.0, ("e5m2", 11.0): 12.0, ("e5m2", 0.3): 0.3125, ("e5m2", 60000.0): 57344.0,
    ("e5m2", -1e30): -57344.0,
}  # fmt: skip


@pytest.mark.parametrize(("form", "value"), BY_HAND)
def test_fp8_rounding_equals_values_worked_out_by_hand(form: Format, value: float) -> None:
    single = torch.tensor([[value]], dtype=torch.float64)
    cast = Fp8Matmul(Fp8()).cast(single, form).double()
    assert (cast.item(), oracle.rounded(single, form).item()) == (BY_HAND[form, value], BY_HAND[form, value])


@pytest.mark.parametrize("form", FORMATS)
def test_every_fp8_number_is_kept_unchanged(form: Format) -> None:
    every = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(DTYPES[form]).float()
    finite = every[every.abs() <= LARGEST[form]].double()
    assert len(finite) == {"e4m3": 254, "e5m2": 248}[form]  # 256 less NaN, and the infinities of e5m2
    assert torch.equal(oracle.rounded(finite, form), finite)
    assert torch.equal(Fp8Matmul(Fp8()).cast(finite, form).double(), finite)


@given(
    shape=st.tuples(st.integers(0, 40), st.integers(1, 150), st.integers(1, 40)),
    scaling=st.sampled_from(SCALINGS), form=st.sampled_from(("hybrid", "e4m3")), spread=st.floats(0, 6),
)  # fmt: skip
@SETTINGS
def test_an_fp8_product_equals_its_definition_in_every_shape(
    shape: tuple[int, int, int], scaling: Literal["delayed"], form: Literal["e4m3"], spread: float
) -> None:
    """Rows and columns differ by powers of ten up to `spread`, so that a block is not like its neighbour."""
    rows, inputs, outputs = shape
    fp8 = Fp8(scaling=scaling, format=form)
    product = Fp8Matmul(fp8).double()
    if product.delayed:
        product.scale.copy_(torch.tensor([[30.0], [50.0], [1000.0]]))
    x_SI, weight_OI, dy_SO = (
        uneven(name, size, spread) for name, size in
        (("x", (rows, inputs)), ("w", (outputs, inputs)), ("dy", (rows, outputs)))
    )  # fmt: skip
    scales = product.scale[:, 0] if product.delayed else None
    ours = passed(product(x_SI, weight_OI), dy_SO, x_SI, weight_OI)
    theirs = passed(oracle.product(x_SI, weight_OI, fp8, scales), dy_SO, x_SI, weight_OI)
    for name, one, two in zip(("y", "dx", "dw"), ours, theirs, strict=True):
        assert not numerics.difference(name, one, two, FLOAT64)


def uneven(name: str, shape: tuple[int, int], spread: float) -> Tensor:
    rows, columns = (
        10 ** (spread * (fixtures.normal(f"{name}/{dim}", (shape[dim],)).sigmoid() - 0.5)) for dim in (0, 1)
    )
    return (rows[:, None] * columns * fixtures.normal(name, shape)).requires_grad_()


def passed(y_SO: Tensor, dy_SO: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return (y_SO.detach(), *torch.autograd.grad((y_SO * dy_SO.detach()).sum(), leaves))


def test_a_block_of_mxfp8_has_the_scale_worked_out_by_hand() -> None:
    """amax 5 and 448 / 5 = 89.6: the power of two below is 64; amax 7 gives 64, and 64 · 7 = 448 just fits."""
    product = Fp8Matmul(Fp8(scaling="mxfp8"))
    t_RC = torch.full((1, 64), 0.5)
    t_RC[0, 3], t_RC[0, 40] = -5.0, 7.0
    assert product.scale_of(t_RC, 0, 1, 0)[0, [0, 31, 32, 63]].tolist() == [64.0, 64.0, 64.0, 64.0]
    t_RC[0, 40] = 7.01
    assert product.scale_of(t_RC, 0, 1, 0)[0, [0, 31, 32, 63]].tolist() == [64.0, 64.0, 32.0, 32.0]


def test_a_bfloat16_product_is_rounded_once() -> None:
    """Sums are float32: 257 products of 1 and 1 are 257 before they become bfloat16's 256."""
    ones = torch.ones(1, 257, dtype=torch.bfloat16)
    assert Fp8Matmul(Fp8())(ones, torch.ones(1, 257)).item() == 256.0
    assert Fp8Matmul(Fp8())(ones.float(), torch.ones(1, 257)).item() == 257.0


def test_a_pass_in_evaluation_mode_does_not_change_the_amax_history() -> None:
    product, x, weight = Fp8Matmul(Fp8(scaling="delayed")), torch.ones(2, 4), torch.ones(3, 4)
    product.eval()(x, weight)
    assert not product.amax_history.any()
    product.train()(x, weight)
    assert product.amax_history[0, :2].eq(1).all()
