"""Stacks that run the wrong things in FP8, or declare one thing and do another."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.kernel_selection import Computed
from contracts.spec.recipe import Mode, Recipe
from contracts.stacks.reference.model.blocks.common import RMSNorm
from contracts.stacks.reference.model.blocks.fp8 import Fp8Conversion, Fp8Matmul
from contracts.stacks.reference.model.blocks.mamba2 import Mamba2
from contracts.stacks.reference.model.blocks.moe import Experts, Router
from contracts.stacks.reference.model.hybrid_model import Model


def in_fp8(weight: Tensor) -> Tensor:
    """A weight that passed through e4m3, with the gradient of one that did not."""
    scale = 448 / weight.detach().abs().amax()
    rounded = (weight.detach() * scale).to(torch.float8_e4m3fn).to(weight.dtype) / scale
    return weight + (rounded - weight).detach()


class _RouterToo(Router):
    def logits(self, x_BTD: Tensor) -> Tensor:
        return nn.functional.linear(x_BTD, in_fp8(self.weight).to(x_BTD.dtype))


@mutant(
    of="PREC-01b", case="experts", says="mixer.router.weight is declared float32, and a change below FP8's resolution"
)
class RoutesInFp8(Exchanged):
    """The router was converted with everything else that multiplies, but the plan still says float32."""

    exchange = {"router": _RouterToo}


class _NormToo(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * in_fp8(self.weight)


@mutant(of="PREC-01b", case="attention", says="norm.weight is declared float32, and a change below FP8's resolution")
@mutant(of="PREC-01c", case="norm", says="a change of norm.weight below FP8's resolution changes no logit")
class NormsInFp8(Exchanged):
    """A fused norm and projection keeps both weights in FP8."""

    exchange = {"norm": _NormToo}


class _DecayToo(Mamba2):
    def decay_rate(self) -> Tensor:
        return -torch.exp(in_fp8(self.A_log))


@mutant(of="PREC-01b", case="mamba2", says="mixer.A_log is declared float32, and a change below FP8's resolution")
class DecaysInFp8(Exchanged):
    """State-space parameters are cast with the block's matrices, although every token multiplies by the decay again."""

    exchange = {"mamba2": _DecayToo}


class _HeadToo(Model):
    def predict(self, hidden_BTD: Tensor) -> Tensor:
        weight_VD = in_fp8(self.embedding.weight if self.head is None else self.head.weight)
        return nn.functional.linear(hidden_BTD, weight_VD.to(hidden_BTD.dtype))


@mutant(of="PREC-01c", case="head", says="a change of head.weight below FP8's resolution changes no logit")
class ProjectsInFp8(Exchanged):
    """The output projection is the largest matrix, and was converted for speed."""

    exchange = {"model": _HeadToo}


class _EmbeddingToo(Model):
    def embed(self, tokens_BT: Tensor) -> Tensor:
        return in_fp8(self.embedding.weight)[tokens_BT].to(self.activations)


@mutant(of="PREC-01c", case="embedding", says="a change of embedding.weight below FP8's resolution changes no logit")
class EmbedsInFp8(Exchanged):
    """The embedding table is stored in FP8."""

    exchange = {"model": _EmbeddingToo}


class _Idle(Fp8Conversion):
    def applied(self, mixer: nn.Module) -> nn.Module:
        super().applied(mixer)
        for module in mixer.modules():
            if isinstance(module, Fp8Matmul):
                module.quantise = lambda t_RC, *where: t_RC  # type: ignore[method-assign]
        return mixer


@mutant(
    of="PREC-01b", case="dense", says="mixer.w1.weight is declared fp8, and a change below FP8's resolution changes"
)
@mutant(
    of="PREC-01b",
    case="mamba3",
    says="mixer.wz.weight is declared fp8, and a change below FP8's resolution changes",
)
class SaysFp8AndRunsWithout(Exchanged):
    """The FP8 modules exist, but the context that enables them does not: bfloat16 figures are reported as FP8."""

    exchange = {"low_precision": _Idle}


class _NoExperts(Fp8Conversion):
    def applied(self, mixer: nn.Module) -> nn.Module:
        super().applied(mixer)
        for module in mixer.modules():
            if isinstance(module, Experts):
                module.fp8 = None
        return mixer


@mutant(of="PREC-01a", case="native", says="layers.1.mixer.experts.w1 computes in bfloat16, expected fp8")
class LeavesTheExpertsOut(Exchanged):
    """Conversion looks for linear modules; the experts' stacked matrices are not, so most of the model stays out of
    FP8.
    """

    exchange = {"low_precision": _NoExperts}


class _NoOutputs(Fp8Conversion):
    kept_out = Fp8Conversion.kept_out | {"wo"}


@mutant(of="PREC-01a", case="latent-and-ahead", says="layers.0.mixer.wo.weight computes in bfloat16, expected fp8")
class LeavesOutputProjectionsOut(Exchanged):
    """A list of names to leave out matches more than the head: `wo` is on it for "word output"."""

    exchange = {"low_precision": _NoOutputs}


class PlansFromTheRecipe(Exchanged):
    """A stack whose plan says what the recipe asks for."""

    @staticmethod
    def takes(row: Computed) -> bool:
        return row.compute == "fp8"

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        plan = super().precision_plan(recipe, mode)
        on = recipe.fp8 is not None
        return tuple(replace(row, compute="fp8") if on and self.takes(row) else row for row in plan)


@mutant(of="PREC-01a", case="native", says="embedding.weight (embedding) computes in fp8")
class TakesEverythingAlong(PlansFromTheRecipe):
    """Over-correction: nothing is left out any more, so that nothing can be forgotten."""

    @staticmethod
    def takes(row: Computed) -> bool:
        return True


@mutant(of="PREC-01a", case="author", says="layers.1.mixer.router.weight (router) computes in fp8")
class TakesTheRouterAlong(PlansFromTheRecipe):
    """Everything with two dims counts as a matrix, the router included."""

    @staticmethod
    def takes(row: Computed) -> bool:
        return row.name.endswith("router.weight")


@mutant(of="PREC-01a", case="off", says="layers.0.mixer.wq.weight (matrix) computes in fp8")
class IsInFp8WithoutBeingAsked(Exchanged):
    """FP8 is on because the device supports it, whatever the recipe says."""

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        plan = super().precision_plan(recipe, mode)
        return tuple(replace(row, compute="fp8") if row.name.endswith("mixer.wq.weight") else row for row in plan)


@mutant(of="PREC-01a", case="dense-delayed", says="the plan and the model differ in ['layers.1.mixer.w1.weight'")
class PlansWithoutTheDenseMlp(Exchanged):
    """The plan was written for models with experts and skips a dense MLP."""

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        return tuple(row for row in super().precision_plan(recipe, mode) if not row.name.endswith("mixer.w1.weight"))


class _TimeStepsToo(Fp8Conversion):
    kept_out: frozenset[str] = frozenset()


@mutant(of="PREC-01b", case="mamba2", says="mixer.wdt.weight is declared bfloat16, and a change below FP8's resolution")
class TakesTimeStepsAlongUnsaid(Exchanged):
    """The time-step projection runs in FP8 and is declared as bfloat16."""

    exchange = {"low_precision": _TimeStepsToo}

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        plan = super().precision_plan(recipe, mode)
        return tuple(replace(row, compute="bfloat16") if row.name.endswith("wdt.weight") else row for row in plan)
