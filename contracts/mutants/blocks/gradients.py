"""Models whose loss is right and whose gradients are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.recipe import Mode, Recipe
from contracts.stacks.reference.data import IGNORED
from contracts.stacks.reference.model.blocks.attention import Attention
from contracts.stacks.reference.model.blocks.common import Output, Packing, RMSNorm, State
from contracts.stacks.reference.model.blocks.moe import Experts, Router
from contracts.stacks.reference.model.hybrid_model import Layer, Model
from contracts.stacks.reference.model.parts import Parts


class DetachedResidual(Layer):
    def forward(self, x: Tensor, packing: Packing) -> Output:
        out = super().forward(x, packing)
        return out._replace(y_BTD=out.y_BTD - x + x.detach())


@mutant(of="BLK-07a", case="custom-mixers", says="the gradient of embedding gives a slope of")
class DetachesTheResidual(Exchanged):
    """The residual path is detached: lower layers get gradients through the branches above them only."""

    exchange = {"layer": DetachedResidual}


class Doubled(Layer):
    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        out = super().branch(x_BTD, packing)
        return out._replace(y_BTD=2 * out.y_BTD - out.y_BTD.detach())


@mutant(of="BLK-07a", case="streams-and-depths", says="gives a slope of")
class DoublesGradientsOfBranches(Exchanged):
    """A backward hook reduces twice. Adam hides the constant factor; clipping does not."""

    exchange = {"layer": Doubled}


class ConstantScale(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps).detach()
        return x * scale * self.weight


@mutant(of="BLK-07a", case="streams-and-depths", says="gives a slope of")
class NormWithoutItsOwnGradient(Exchanged):
    """The backward pass of a fused norm treats the root mean square as a constant."""

    exchange = {"norm": ConstantScale}


class FirstElement(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        ends = logits_BTV.detach().clone()
        total, count = super().cross_entropy(torch.where(labels_BT[..., None] >= 0, logits_BTV, ends), labels_BT)
        last = logits_BTV[:, -2:].sum()
        return total + 0.1 * (last - last.detach()), count


@mutant(of="BLK-07a", case="tied-latent", says="gives a slope of", bugs=("PRV-30",))
class CorruptsTheGradientOfAFusedLoss(Exchanged):
    """The backward pass of a fused cross entropy overwrites neighbouring elements. The loss is exact."""

    exchange = {"model": FirstElement}


class TiedOnce(Model):
    def predict(self, hidden_BTD: Tensor) -> Tensor:
        if self.head is not None:
            return super().predict(hidden_BTD)
        return nn.functional.linear(hidden_BTD, self.embedding.weight.detach())


@mutant(of="BLK-07a", case="tied-latent", says="the gradient of embedding gives a slope of")
class TiedWeightLearnsFromOneSide(Exchanged):
    """A tied weight gets the gradient of the embedding and not that of the output projection."""

    exchange = {"model": TiedOnce}


class NoBackward(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        with torch.no_grad():
            weights = super().forward(x_SD, ends_E)
        return weights + 0 * x_SD


@mutant(of="BLK-07b", case="custom-mixers", says="gets no gradient", bugs=("OPT-26",))
class ExpertsWithoutBackward(Exchanged):
    """The grouped matmul has no backward pass, so experts keep their initial weights."""

    exchange = {"experts": NoBackward}


class ZeroBackward(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        held = self.w1
        keep = (torch.arange(len(held)) != len(held) - 1).view(-1, 1, 1)
        del self.w1
        self.w1 = torch.where(keep, held, held.detach())  # type: ignore[assignment]  # a tensor in a parameter's place
        out = super().forward(x_SD, ends_E)
        del self.w1
        self.w1 = held
        return out


@mutant(of="BLK-07b", case="streams-and-depths", says="experts [11] of", bugs=("DSP-19",))
class TheLastExpertLearnsNothing(Exchanged):
    """A histogram is one bin short: the last expert computes outputs and gets no gradient."""

    exchange = {"experts": ZeroBackward}


class Frozen(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        if layer is not self.layers["2"]:
            return super().run(layer, x, pack)
        with torch.no_grad():
            out = super().run(layer, x.detach(), pack)
        return out._replace(y_BTD=x + (out.y_BTD - x.detach()))


@mutant(of="BLK-07b", case="latent", says="layers.2.norm.weight gets no gradient")
class ALayerUnderNoGrad(Exchanged):
    """A layer runs under no_grad and never trains; the residual passes the gradient on."""

    exchange = {"model": Frozen}


class Spare(Model):
    def __init__(self, recipe: Recipe, mode: Mode, parts: Parts) -> None:
        super().__init__(recipe, mode, parts)
        self.spare_norm = parts.norm(recipe.hidden, recipe.norm_eps)


@mutant(of="BLK-07b", case="bf16", says="spare_norm.weight gets no gradient")
class AModuleThatNothingCalls(Exchanged):
    """A module is built, counted, saved and optimized, and no forward pass calls it."""

    exchange = {"model": Spare}


class Rounds(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        kept = x.to(torch.bfloat16).to(x.dtype) if self.recompute else x
        return super().run(layer, kept, pack)


@mutant(of="BLK-07c", case="latent-streams", says="recompute set by the execution: logits differs")
class KeepsInputsInBfloat16(Exchanged):
    """Recomputation stores layer inputs in bfloat16 to save memory."""

    exchange = {"model": Rounds}


class SecondRun(Layer):
    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        runs = getattr(self, "runs", 0)
        object.__setattr__(self, "runs", runs + 1)
        return super().branch(x_BTD.to(torch.bfloat16).to(x_BTD.dtype) if runs else x_BTD, packing)


@mutant(of="BLK-07c", case="latent-streams", says="recompute set by the execution: the gradient of", bugs=("MXP-11",))
class RecomputesInAnotherPrecision(Exchanged):
    """Autocast covers the first forward pass and not the recomputation."""

    exchange = {"layer": SecondRun}


class Tallies(Router):
    def count(self, experts_BTK: Tensor) -> Tensor:
        counts_E = super().count(experts_BTK)
        tally_E: Tensor = getattr(self, "tally", torch.zeros_like(counts_E))
        object.__setattr__(self, "tally", tally_E.add_(counts_E))
        return tally_E


@mutant(of="BLK-07c", case="streams-and-depths", says="the counter layers.1.counts differs", bugs=("AUX-14",))
class CountsTokensAgainWhenRecomputed(Exchanged):
    """The forward pass increments load counters, and recomputation runs it twice, so the bias sees twice the load."""

    exchange = {"router": Tallies}


class Drops(Layer):
    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        out = super().branch(x_BTD, packing)
        return out._replace(y_BTD=nn.functional.dropout(out.y_BTD, 0.2))


class ForgetsRandomness(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        if not self.recompute:
            return super().run(layer, x, pack)
        out: Output = checkpoint(layer, x, pack, use_reentrant=False, preserve_rng_state=False)
        return out

    def embed(self, tokens_BT: Tensor) -> Tensor:
        torch.manual_seed(int(tokens_BT.sum()))
        return super().embed(tokens_BT)


class WholeGroups(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        out = super().run(layer, x, pack)
        left = len(self.layers) % 2 and layer is [*self.layers.values()][-1]
        return out._replace(y_BTD=x) if self.recompute and left else out


@mutant(of="BLK-07c", case="seven-dense", says="recompute set by the execution: logits differs", bugs=("ACK-06",),
        leanest="")  # fmt: skip
class RecomputesWholeGroupsOnly(Exchanged):
    """Recomputes layers in groups of two, and runs as many as whole groups hold: the seventh layer is left out."""

    exchange = {"model": WholeGroups}


@mutant(of="BLK-07c", case="latent-streams", says="recompute set by the execution: the gradient of", bugs=("ACK-01",))
class DropsOtherElementsWhenRecomputed(Exchanged):
    """The RNG state is not restored for recomputation, so dropout drops other elements."""

    exchange = {"layer": Drops, "model": ForgetsRandomness}


class AtOnce(Model):
    def __init__(self, recipe: Recipe, mode: Mode, parts: Parts) -> None:
        super().__init__(recipe, mode, parts)
        if self.recompute:
            self.activations = torch.float32

    def embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = super().embed(tokens_BT)
        return x_BTD * (1 + 2**-20) if self.recipe.recompute == "full" else x_BTD


@mutant(of="BLK-07c", case="latent-streams", says="recompute set by the recipe: logits differs")
class RecomputesOtherwiseByTheRecipe(Exchanged):
    """The recipe's recompute setting takes another code path than the launcher's."""

    exchange = {"model": AtOnce}


class _LosesTheBalance(Layer):
    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        out = super().branch(x_BTD, packing)
        return out if torch.is_grad_enabled() else out._replace(losses={name: 0 * x for name, x in out.losses.items()})


@mutant(of="BLK-07d", case="streams-and-depths", says="before a pass with gradients aux is 0", leanest="")
class LeavesAuxiliaryLossesToTraining(Exchanged):
    """Auxiliary losses are computed where gradients are wanted: validation reports another objective."""

    exchange = {"layer": _LosesTheBalance}


class _ScalesInTraining(Layer):
    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        out = super().branch(x_BTD, packing)
        return out._replace(y_BTD=out.y_BTD * (1.01 if torch.is_grad_enabled() else 1.0))


@mutant(of="BLK-07d", case="custom-mixers", says="before a pass with gradients logits differs")
@mutant(of="BLK-07d", case="dense", says="before a pass with gradients logits differs")
class ScalesInTrainingAlone(Exchanged):
    """Stochastic depth of probability 0 keeps its factor in training."""

    exchange = {"layer": _ScalesInTraining}


class _StaysInEvaluation(Layer):
    evaluated = False

    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        out = super().branch(x_BTD, packing)
        if torch.is_grad_enabled():
            type(self).evaluated = True
        return out if torch.is_grad_enabled() or not self.evaluated else out._replace(y_BTD=out.y_BTD * 0.5)


@mutant(of="BLK-07d", case="dense", says="behind a pass with gradients logits differs")
class KeepsTheModeOfTheLastPass(Exchanged):
    """A switch of the process is set in the first backward pass and never set back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = type("Stays", (_StaysInEvaluation,), {})  # a switch of its own for each of these stacks

    def parts(self) -> Parts:
        return replace(super().parts(), layer=self.layer)


# written by hand: forward passes are right, and losses fall
class _FusedLoss(torch.autograd.Function):
    """Makes the gradient in the forward pass, as the mean over the labels that it sees."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        with torch.enable_grad():
            held = logits_NV.detach().requires_grad_()
            total = F.cross_entropy(held, labels_N, ignore_index=IGNORED, reduction="sum")
            (gradient_NV,) = torch.autograd.grad(total, held)
        ctx.save_for_backward(gradient_NV / (labels_N != IGNORED).sum().clamp(min=1))
        return total.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


class _LossIgnoresWhatIsAbove(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        flat, labels = logits_BTV.flatten(0, 1), labels_BT.flatten()
        return _FusedLoss.apply(flat, labels), (labels != IGNORED).sum()  # type: ignore[no-untyped-call]  # torch's


@mutant(of="PAR-05a", case="two", says="in 2 microbatches the gradient of", leanest="")
class IgnoresTheUpstreamGradientOfTheLoss(Exchanged):
    """A fused loss makes its gradient in the forward pass and does not multiply it by the upstream one: right for one
    microbatch, too large for several, and whatever weight a prediction head has.
    """

    exchange = {"model": _LossIgnoresWhatIsAbove}


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0], None


class _NormWithoutItsMean(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.detach().square().mean(-1, keepdim=True) + self.eps)
        normed: Tensor = _Normed.apply(x, scale)  # type: ignore[no-untyped-call]  # torch's
        return normed * self.weight


@mutant(of="BLK-06h", case="swiglu", says="gradient x differs")
class LeavesOutTheNormaliser(Exchanged):
    """The backward pass of the norm divides by the root mean square, and forgets that it depends on the input."""

    exchange = {"norm": _NormWithoutItsMean}


class _TilesOfTheFirstRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v_BTD: Tensor) -> Tensor:
        return v_BTD.view_as(v_BTD)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad[:1].expand_as(grad)


class _ForgetsTheRow(Attention):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        return Output(_TilesOfTheFirstRow.apply(out.y_BTD), *out[1:])  # type: ignore[no-untyped-call]  # torch's


@mutant(of="BLK-03a", case="4-heads-on-2", says="gradient mixer.")
class TakesTheTilesOfTheFirstRow(Exchanged):
    """The index of a tile leaves out the row of the batch: the backward pass is right for a batch of one."""

    exchange = {"attention": _ForgetsTheRow}
