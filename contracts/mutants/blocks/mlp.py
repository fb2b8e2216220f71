"""Dense MLPs with one bug: in activation, gate, derivative or independence of tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support import written_out
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.blocks.attention import DropsTheEpsOfTheRecipe
from contracts.stacks.reference.model.blocks.mlp import Mlp


class _Relu(Mlp):
    def activate(self, x_BTF: Tensor) -> Tensor:
        return F.relu(x_BTF)


@mutant(of="BLK-06h", case="relu2", says="y differs")
@mutant(of="BLK-06j", case="relu2-w1", says="mixer.w1.weight times 3, against 9 times the output: y differs")
class ForgetsTheSquare(Exchanged):
    """relu in place of relu². It trains nearly as well."""

    exchange = {"mlp": _Relu}


class _Square(Mlp):
    def activate(self, x_BTF: Tensor) -> Tensor:
        return x_BTF.square()


@mutant(of="BLK-06i", case="relu2", says="relu2 of -3 is 9, expected 0")
class SquaresBothSigns(Exchanged):
    """x² without the relu. It scales as relu² does."""

    exchange = {"mlp": _Square}


class _Gelu(Mlp):
    def activate(self, x_BTF: Tensor) -> Tensor:
        return F.gelu(x_BTF)


@mutant(of="BLK-06i", case="relu2", says="relu2 of 3 is 2.99595031, expected 9")
class KeepsTheDefaultActivation(Exchanged):
    """The builder ignores the recipe's activation and uses its default, gelu."""

    exchange = {"mlp": _Gelu}


class _HalfDerivative(Mlp):
    def activate(self, x_BTF: Tensor) -> Tensor:
        positive = F.relu(x_BTF)
        return positive * positive.detach()


@mutant(of="BLK-06h", case="relu2-narrow", says="gradient mixer.w1.weight differs")
class DerivativeLosesItsFactor(Exchanged):
    """The fused backward kernel of relu² multiplies by x instead of 2x. Adam hides the factor."""

    exchange = {"mlp": _HalfDerivative}


class _ThroughLogarithms(Mlp):
    def activate(self, x_BTF: Tensor) -> Tensor:
        return torch.where(x_BTF > 0, (2 * x_BTF.abs().log()).exp(), torch.zeros_like(x_BTF))


@mutant(of="BLK-06k", case="relu2", says="mixer.w1.weight is zero, and the gradient of norm.weight is not finite")
class SquaresThroughLogarithms(Exchanged):
    """The square is exp(2 log x) behind a `where`, so its derivative at 0 is 0 · infinity."""

    exchange = {"mlp": _ThroughLogarithms}


class _Floored(Mlp):
    def activate(self, x_BTF: Tensor) -> Tensor:
        return x_BTF.clamp_min(1e-3).square()


@mutant(of="BLK-06k", case="relu2", says="mixer.w1.weight is zero, and the output is not")
class FloorsTheActivation(Exchanged):
    """A floor keeps the logarithm finite, and keeps every unit active."""

    exchange = {"mlp": _Floored}


class _Exchanged(Mlp):
    def gate(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return super().gate(up_BTF, gate_BTF)


@mutant(of="BLK-06h", case="swiglu", says="y differs")
@mutant(of="BLK-06i", case="swiglu", says="swiglu of 1 is 1.76159416, expected 1.46211716")
@mutant(of="BLK-06j", case="swiglu-w3", says="mixer.w3.weight times -3, against -3 times the output: y differs")
class GatesByTheWrongMatrix(Exchanged):
    """w1 and w3 are swapped, so silu applies to w3 x."""

    exchange = {"mlp": _Exchanged}


class _Sigmoid(Mlp):
    def gate(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return gate_BTF.sigmoid() * up_BTF


@mutant(of="BLK-06h", case="swiglu-narrow", says="y differs")
@mutant(of="BLK-06k", case="swiglu", says="mixer.w1.weight is zero, and the output is not")
class GatesBySigmoid(Exchanged):
    """The gate is sigmoid instead of silu: GLU in place of SwiGLU."""

    exchange = {"mlp": _Sigmoid}


class _Fused(Mlp):
    def apply_to(self, x_BTD: Tensor) -> Tensor:
        if not self.gated:
            return super().apply_to(x_BTD)
        (first, second), (third, fourth) = (each.weight.chunk(2) for each in (self.w1, self.w3))
        sharded = torch.cat((first, third, second, fourth)).to(x_BTD.dtype)  # [gate | up] of rank 0, then of rank 1
        gate_BTF, up_BTF = F.linear(x_BTD, sharded).chunk(2, dim=-1)
        y_BTD: Tensor = self.w2(self.gate(gate_BTF, up_BTF))
        return y_BTD


@mutant(of="BLK-06h", case="swiglu", says="y differs", bugs=("RSM-61",))
class ReadsAShardedGateAndUpAsWhole(Exchanged):
    """A fused [gate | up] saved from two TP ranks is read as if it were unsharded."""

    exchange = {"mlp": _Fused}


class _Centred(Mlp):
    def activate(self, x_BTF: Tensor) -> Tensor:
        return super().activate(x_BTF - x_BTF.mean(1, keepdim=True))

    def gate(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return super().gate(gate_BTF, up_BTF - up_BTF.mean((0, 1), keepdim=True))


@mutant(of="BLK-06l", case="relu2", says="token 3 of row 1 was replaced, and y of the others differs")
@mutant(of="BLK-06l", case="swiglu", says="token 7 of row 1 was replaced, and y of the others differs")
class CentresOverTokens(Exchanged):
    """The inner values are centred over the sequence, so each token depends on all others."""

    exchange = {"mlp": _Centred}


mutant(of="BLK-06h", case="wide-eps", says="y differs", bugs=("MXP-08",))(DropsTheEpsOfTheRecipe)


class _OverflowingSilu(Mlp):
    def gate(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return written_out.silu(gate_BTF) * up_BTF


@mutant(of="BLK-06h", case="swiglu-saturated", says="y is not finite")
class WritesSiluOut(Exchanged):
    """A fused gate computes x · exp(x) / (1 + exp(x)), which is NaN where exp overflows."""

    exchange = {"mlp": _OverflowingSilu}


class _ClampedSilu(Mlp):
    def gate(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return written_out.silu(gate_BTF.clamp(-80, 80)) * up_BTF


@mutant(of="BLK-06h", case="swiglu-saturated", says="y differs")
class ClampsBeforeSilu(Exchanged):
    """Against the overflow the input of a gate is clamped, with it the output, and its gradient ends there."""

    exchange = {"mlp": _ClampedSilu}
