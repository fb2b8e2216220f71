"""FP8 products with one bug each: formats, scales, blocks, clamps, the quantised tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.recipe import Fp8
from contracts.stacks.reference.model.blocks.fp8 import (
    DTYPES,
    GRADIENT,
    INPUT,
    LARGEST,
    WEIGHT,
    Format,
    Fp8Conversion,
    Fp8Matmul,
    amax,
)


def multiplying_by(product: type[Fp8Matmul]) -> dict[str, type[Fp8Conversion]]:
    return {"low_precision": type("LowPrecision", (Fp8Conversion,), {"product": product})}


class _Transposed(Fp8Matmul):
    def __init__(self, fp8: Fp8, matrices: int = 1) -> None:
        super().__init__(fp8, matrices)
        self.formats = ("e5m2", "e5m2", "e4m3") if fp8.format == "hybrid" else self.formats


@mutant(of="PREC-01d", case="tensorwise", says="y differs")
class ExchangesTheFormats(Exchanged):
    """hybrid is swapped: e5m2 in the forward pass, and gradients in e4m3."""

    exchange = multiplying_by(_Transposed)


class _OneFormat(Fp8Matmul):
    def __init__(self, fp8: Fp8, matrices: int = 1) -> None:
        super().__init__(fp8, matrices)
        self.formats = ("e4m3", "e4m3", "e4m3")


@mutant(of="PREC-01d", case="tensorwise", says="gradient norm.weight differs")
class IgnoresHybrid(Exchanged):
    """Gradients are in e4m3 whatever the recipe says; the forward pass is right."""

    exchange = multiplying_by(_OneFormat)


class _AlwaysHybrid(Fp8Matmul):
    def __init__(self, fp8: Fp8, matrices: int = 1) -> None:
        super().__init__(fp8, matrices)
        self.formats = ("e4m3", "e4m3", "e5m2")


@mutant(of="PREC-01d", case="tensorwise-e4m3", says="gradient norm.weight differs")
class AlwaysHybrid(Exchanged):
    """The converse: format e4m3 does not reach the backward pass."""

    exchange = multiplying_by(_AlwaysHybrid)


class _Inverted(Fp8Matmul):
    def fitting(self, amax: Tensor, largest: float) -> Tensor:
        return 1 / super().fitting(amax, largest)


@mutant(of="PREC-01d", case="tensorwise-swiglu", says="y differs")
class InvertsTheScale(Exchanged):
    """The factor that dequantises is used to quantise, so everything drowns near zero."""

    exchange = multiplying_by(_Inverted)


class _OfTheInput(Fp8Matmul):
    last: Tensor

    def fitting(self, amax: Tensor, largest: float) -> Tensor:
        if self.scaling != "tensorwise":
            return super().fitting(amax, largest)
        self.last = amax if not hasattr(self, "last") else self.last
        return super().fitting(self.last, largest)


@mutant(of="PREC-01d", case="tensorwise-float32", says="y differs")
@mutant(of="PREC-01e", case="tensorwise", says="y differs")
class ScalesByAnotherTensor(Exchanged):
    """Every scale of a matrix uses the first amax that it met, which was its input's."""

    exchange = multiplying_by(_OfTheInput)


class _ByRow(Fp8Matmul):
    def scale_of(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        if self.scaling == "tensorwise":
            return self.fitting(amax(t_RC, 1), LARGEST[self.formats[role]])
        return super().scale_of(t_RC, role, along, matrix)


@mutant(of="PREC-01d", case="tensorwise", says="y differs")
class ScalesByRow(Exchanged):
    """Scaling is row-wise under the name of tensorwise: more exact, but another recipe."""

    exchange = multiplying_by(_ByRow)


class _Across(Fp8Matmul):
    def over_blocks(self, t_RC: Tensor, size: int, along: int) -> Tensor:
        return super().over_blocks(t_RC, size, 1 - along)


@mutant(of="PREC-01d", case="mxfp8", says="y differs")
@mutant(of="PREC-01d", case="blockwise", says="y differs")
class BlocksAlongTheOtherDim(Exchanged):
    """A block lies across the summed dim, so its scale cannot be factored out of the sum."""

    exchange = multiplying_by(_Across)


class _Reused(Fp8Matmul):
    def scale_of(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        return super().scale_of(t_RC, role, 1 if role != GRADIENT else along, matrix)


@mutant(of="PREC-01d", case="mxfp8-e4m3", says="gradient mixer.w2.weight differs")
class KeepsTheForwardBlocks(Exchanged):
    """The forward pass's quantised factors are transposed and reused, so their blocks lie across the summed dim."""

    exchange = multiplying_by(_Reused)


class _Rowwise(Fp8Matmul):
    def scale_of(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        return super().scale_of(t_RC, INPUT if role == WEIGHT else role, along, matrix)


@mutant(of="PREC-01d", case="blockwise", says="y differs")
class WeightsInStripes(Exchanged):
    """Weights have blocks of 1 x 128, as activations do, instead of 128 x 128."""

    exchange = multiplying_by(_Rowwise)


class _Floats(Fp8Matmul):
    def power_of_two(self, scale: Tensor) -> Tensor:
        return scale


@mutant(of="PREC-01d", case="mxfp8", says="y differs")
class KeepsTheScaleInFloat32(Exchanged):
    """The scale of an mxfp8 block should be a power of two with eight exponent bits; here it is any float32."""

    exchange = multiplying_by(_Floats)


class _Nearest(Fp8Matmul):
    def power_of_two(self, scale: Tensor) -> Tensor:
        return torch.exp2(torch.log2(scale).round())


@mutant(of="PREC-01d", case="mxfp8-e4m3", says="y differs")
class RoundsTheScaleToTheNearest(Exchanged):
    """The scale is rounded to the nearest power of two; rounded up, it saturates the block's greatest element."""

    exchange = multiplying_by(_Nearest)


class _Truncates(Fp8Matmul):
    def cast(self, t: Tensor, form: Format) -> Tensor:
        cut = t.clamp(-LARGEST[form], LARGEST[form])
        spacing = torch.exp2(torch.log2(cut.abs().clamp(min=2.0**-20)).floor() - (3 if form == "e4m3" else 2))
        return torch.trunc(cut / spacing) * spacing


@mutant(of="PREC-01d", case="delayed", says="y differs")
class RoundsTowardsZero(Exchanged):
    """The cast truncates bits, so every product is slightly too small."""

    exchange = multiplying_by(_Truncates)


class _Unclamped(Fp8Matmul):
    def cast(self, t: Tensor, form: Format) -> Tensor:
        return t.to(DTYPES[form])


@mutant(of="PREC-01f", case="gradient", says="is not finite")
class LeavesTheClampToTheCast(Exchanged):
    """torch's cast to e4m3 saturates, so the clamp was dropped; its cast to e5m2 overflows to infinity."""

    exchange = multiplying_by(_Unclamped)


class _Zeroed(Fp8Matmul):
    def cast(self, t: Tensor, form: Format) -> Tensor:
        return super().cast(torch.where(t.abs() > LARGEST[form], 0.0, t), form)


@mutant(of="PREC-01f", case="input", says="y differs")
@mutant(of="PREC-01f", case="weight", says="y differs")
class DropsWhatOverflows(Exchanged):
    """Over-correction: values that do not fit are set to zero along with those that are not finite."""

    exchange = multiplying_by(_Zeroed)


class _Rescued(Fp8Matmul):
    def scale_of(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        scale = super().scale_of(t_RC, role, along, matrix)
        if self.delayed and bool((t_RC.abs().amax() * scale < 1).all()):
            return self.fitting(amax(t_RC), LARGEST[self.formats[role]])
        return scale


@mutant(of="PREC-01f", case="gradient-vanishes", says="gradient mixer.w2.weight differs")
class FallsBackToTheCurrentScale(Exchanged):
    """Delayed scaling silently uses the current tensor where its scale is poor, which is neither recipe."""

    exchange = multiplying_by(_Rescued)


class _Shared(Fp8Matmul):
    def grouped(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        used = x_SI[: int(ends_E[-1])]
        common = amax(used)
        self.__dict__["common"] = common
        return super().grouped(x_SI, weight_EOI, ends_E)

    def scale_of(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        if role == INPUT and "common" in self.__dict__ and self.scaling == "tensorwise":
            return self.fitting(self.__dict__["common"].to(t_RC.dtype), LARGEST["e4m3"])
        return super().scale_of(t_RC, role, along, matrix)


@mutant(of="PREC-01e", case="tensorwise", says="y differs")
class OneScaleForAllTokens(Exchanged):
    """The tokens of all experts are quantised as one tensor before they are dispatched."""

    exchange = multiplying_by(_Shared)


class _FirstExpert(Fp8Matmul):
    def scale_of(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        return super().scale_of(t_RC, role, along, 0)


@mutant(of="PREC-01e", case="delayed", says="y differs")
class EveryExpertHasTheFirstOnesScale(Exchanged):
    """Delayed scaling keeps its state per module, and twelve experts are one module."""

    exchange = multiplying_by(_FirstExpert)


class _Slid(Fp8Matmul):
    def grouped(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        return super().grouped(x_SI, weight_EOI.roll(1, 0) if bool((ends_E.diff() == 0).any()) else weight_EOI, ends_E)


@mutant(of="PREC-01e", case="mxfp8", says="y differs")
class SlidesPastAnEmptyExpert(Exchanged):
    """Experts without tokens have no group in the grouped product, so the others move up by one."""

    exchange = multiplying_by(_Slid)
