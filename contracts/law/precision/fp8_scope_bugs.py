"""Stacks that run the wrong things in FP8, or declare one thing and do another."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from contracts.law._bugs.numeric import (
    Experts,
    Fp8Matmul,
    Mamba2,
    Model,
    Parts,
    Reference,
    RMSNorm,
    Router,
    broken,
    mutant,
    with_attributes,
)
from contracts.spec import Computed, Mode, Recipe
from contracts.stacks.reference.model.blocks import Fp8Conversion


def in_fp8(weight: Tensor) -> Tensor:
    """A weight that passed through e4m3, with the gradient of one that did not."""
    scale = 448 / weight.detach().abs().amax()
    rounded = (weight.detach() * scale).to(torch.float8_e4m3fn).to(weight.dtype) / scale
    return weight + (rounded - weight).detach()


@broken(
    Router, "logits", "PREC-01b[experts]: mixer.router.weight is declared float32, and a change below FP8's resolution"
)
def routes_in_fp8(logits, self, x_BTD):
    """The router was converted with everything else that multiplies, but the plan still says float32."""
    return nn.functional.linear(x_BTD, in_fp8(self.weight).to(x_BTD.dtype))


@broken(
    RMSNorm,
    "forward",
    "PREC-01c[norm]: a change of norm.weight below FP8's resolution changes no logit",
    "PREC-01b[attention]: norm.weight is declared float32, and a change below FP8's resolution",
)
def norms_in_fp8(forward, self, x):
    """A fused norm and projection keeps both weights in FP8."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * in_fp8(self.weight)


@broken(Mamba2, "decay_rate", "PREC-01b[mamba2]: mixer.A_log is declared float32, and a change below FP8's resolution")
def decays_in_fp8(decay_rate, self):
    """State-space parameters are cast with the block's matrices, although every token multiplies by the decay again."""
    return -torch.exp(in_fp8(self.A_log))


@broken(Model, "predict", "PREC-01c[head]: a change of head.weight below FP8's resolution changes no logit")
def projects_in_fp8(predict, self, hidden_BTD):
    """The output projection is the largest matrix, and was converted for speed."""
    weight_VD = in_fp8(self.embedding.weight if self.head is None else self.head.weight)
    return nn.functional.linear(hidden_BTD, weight_VD.to(hidden_BTD.dtype))


@broken(Model, "embed", "PREC-01c[embedding]: a change of embedding.weight below FP8's resolution changes no logit")
def embeds_in_fp8(embed, self, tokens_BT):
    """The embedding table is stored in FP8."""
    return in_fp8(self.embedding.weight)[tokens_BT].to(self.activations)


@broken(
    Fp8Conversion,
    "applied",
    "PREC-01b[mamba3]: mixer.wz.weight is declared fp8, and a change below FP8's resolution changes",
    "PREC-01b[dense]: mixer.w1.weight is declared fp8, and a change below FP8's resolution changes",
)
def says_fp8_and_runs_without(applied, self, mixer):
    """The FP8 modules exist, but the context that enables them does not: bfloat16 figures are reported as FP8."""
    applied(self, mixer)
    for module in mixer.modules():
        if isinstance(module, Fp8Matmul):
            module.quantise = lambda t_RC, *where: t_RC
    return mixer


@broken(Fp8Conversion, "applied", "PREC-01a[native]: layers.1.mixer.experts.w1 computes in bfloat16, expected fp8")
def leaves_the_experts_out(applied, self, mixer):
    """Conversion looks for linear modules; the experts' stacked matrices are not, so most of the model stays out of
    FP8.
    """
    applied(self, mixer)
    for module in mixer.modules():
        if isinstance(module, Experts):
            module.fp8 = None
    return mixer


with_attributes(
    "LeavesOutputProjectionsOut",
    'A list of names to leave out matches more than the head: `wo` is on it for "word output".',
    "PREC-01a[latent-and-ahead]: layers.0.mixer.wo.weight computes in bfloat16, expected fp8",
    owner=Fp8Conversion,
    kept_out=Fp8Conversion.kept_out | {"wo"},
)


class PlansFromTheRecipe(Reference):
    """A stack whose plan says what the recipe asks for."""

    @staticmethod
    def takes(row: Computed) -> bool:
        return row.compute == "fp8"

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        plan = super().precision_plan(recipe, mode)
        on = recipe.fp8 is not None
        return tuple(replace(row, compute="fp8") if on and self.takes(row) else row for row in plan)


@broken(PlansFromTheRecipe, "takes", "PREC-01a[native]: embedding.weight (embedding) computes in fp8")
def takes_everything_along(takes, row):
    """Over-correction: nothing is left out any more, so that nothing can be forgotten."""
    return True


@broken(PlansFromTheRecipe, "takes", "PREC-01a[author]: layers.1.mixer.router.weight (router) computes in fp8")
def takes_the_router_along(takes, row):
    """Everything with two dims counts as a matrix, the router included."""
    return row.name.endswith("router.weight")


@broken(Reference, "precision_plan", "PREC-01a[off]: layers.0.mixer.wq.weight (matrix) computes in fp8")
def is_in_fp8_without_being_asked(precision_plan, self, recipe, mode):
    """FP8 is on because the device supports it, whatever the recipe says."""
    plan = precision_plan(self, recipe, mode)
    return tuple(replace(row, compute="fp8") if row.name.endswith("mixer.wq.weight") else row for row in plan)


@broken(
    Reference, "precision_plan", "PREC-01a[dense-delayed]: the plan and the model differ in ['layers.1.mixer.w1.weight'"
)
def plans_without_the_dense_mlp(precision_plan, self, recipe, mode):
    """The plan was written for models with experts and skips a dense MLP."""
    return tuple(row for row in precision_plan(self, recipe, mode) if not row.name.endswith("mixer.w1.weight"))


@broken(Fp8Conversion, "takes", "PREC-01a[beside-a-scan]: ssm.wdt.weight beside attention computes in fp8, in a layer")
def looks_names_up_with_their_branch(takes, self, name, mixer):
    """The list of names to leave out has `wdt`, and a scan beside attention calls it `ssm.wdt`."""
    return name.startswith("ssm.") or takes(self, name, mixer)


class _TimeStepsToo(Fp8Conversion):
    kept_out: frozenset[str] = frozenset()


@mutant(of="PREC-01b", case="mamba2", says="mixer.wdt.weight is declared bfloat16, and a change below FP8's resolution")
class TakesTimeStepsAlongUnsaid(Reference):
    """The time-step projection runs in FP8 and is declared as bfloat16."""

    def parts(self) -> Parts:
        return replace(super().parts(), low_precision=_TimeStepsToo)

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        plan = super().precision_plan(recipe, mode)
        return tuple(replace(row, compute="bfloat16") if row.name.endswith("wdt.weight") else row for row in plan)
