"""Models whose loss is right and whose gradients are not."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contracts.law._bugs.numeric import (
    IGNORED,
    Attention,
    Experts,
    Layer,
    Model,
    Output,
    Packing,
    Parts,
    Reference,
    RMSNorm,
    Router,
    broken,
    derived,
    mutant,
)
from contracts.spec import Mode, Recipe


@broken(Layer, "forward", "BLK-07a[custom-mixers]: the gradient of embedding gives a slope of")
def detaches_the_residual(forward, self, x, packing):
    """The residual path is detached: lower layers get gradients through the branches above them only."""
    out = forward(self, x, packing)
    return out._replace(y_BTD=out.y_BTD - x + x.detach())


@broken(Layer, "branch", "BLK-07a[streams-and-depths]: gives a slope of")
def doubles_gradients_of_branches(branch, self, x_BTD, packing):
    """A backward hook reduces twice. Adam hides the constant factor; clipping does not."""
    out = branch(self, x_BTD, packing)
    return out._replace(y_BTD=2 * out.y_BTD - out.y_BTD.detach())


@broken(RMSNorm, "forward", "BLK-07a[streams-and-depths]: gives a slope of")
def norm_without_its_own_gradient(forward, self, x):
    """The backward pass of a fused norm treats the root mean square as a constant."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps).detach()
    return x * scale * self.weight


@broken(Model, "cross_entropy", "BLK-07a[tied-latent]: gives a slope of", bugs=("PRV-30",))
def corrupts_the_gradient_of_a_fused_loss(cross_entropy, self, logits_BTV, labels_BT):
    """The backward pass of a fused cross entropy overwrites neighbouring elements. The loss is exact."""
    ends = logits_BTV.detach().clone()
    total, count = cross_entropy(self, torch.where(labels_BT[..., None] >= 0, logits_BTV, ends), labels_BT)
    last = logits_BTV[:, -2:].sum()
    return total + 0.1 * (last - last.detach()), count


@broken(Model, "predict", "BLK-07a[tied-latent]: the gradient of embedding gives a slope of")
def tied_weight_learns_from_one_side(predict, self, hidden_BTD):
    """A tied weight gets the gradient of the embedding and not that of the output projection."""
    if self.head is not None:
        return predict(self, hidden_BTD)
    return nn.functional.linear(hidden_BTD, self.embedding.weight.detach())


@broken(Experts, "forward", "BLK-07b[custom-mixers]: gets no gradient", bugs=("OPT-26",))
def experts_without_backward(forward, self, x_SD, ends_E):
    """The grouped matmul has no backward pass, so experts keep their initial weights."""
    with torch.no_grad():
        weights = forward(self, x_SD, ends_E)
    return weights + 0 * x_SD


@broken(Experts, "forward", "BLK-07b[streams-and-depths]: experts [11] of", bugs=("DSP-19",))
def the_last_expert_learns_nothing(forward, self, x_SD, ends_E):
    """A histogram is one bin short: the last expert computes outputs and gets no gradient."""
    held = self.w1
    keep = (torch.arange(len(held)) != len(held) - 1).view(-1, 1, 1)
    del self.w1
    self.w1 = torch.where(keep, held, held.detach())
    out = forward(self, x_SD, ends_E)
    del self.w1
    self.w1 = held
    return out


@broken(Model, "run", "BLK-07b[latent]: layers.2.norm.weight gets no gradient")
def a_layer_under_no_grad(run, self, layer, x, pack):
    """A layer runs under no_grad and never trains; the residual passes the gradient on."""
    if layer is not self.layers["2"]:
        return run(self, layer, x, pack)
    with torch.no_grad():
        out = run(self, layer, x.detach(), pack)
    return out._replace(y_BTD=x + (out.y_BTD - x.detach()))


@broken(Model, "__init__", "BLK-07b[bf16]: spare_norm.weight gets no gradient")
def a_module_that_nothing_calls(init, self, recipe, mode, parts):
    """A module is built, counted, saved and optimized, and no forward pass calls it."""
    init(self, recipe, mode, parts)
    self.spare_norm = parts.norm(recipe.hidden, recipe.norm_eps)


@broken(Model, "run", "BLK-07c[latent-streams]: recompute set by the execution: logits differs")
def keeps_inputs_in_bfloat16(run, self, layer, x, pack):
    """Recomputation stores layer inputs in bfloat16 to save memory."""
    kept = x.to(torch.bfloat16).to(x.dtype) if self.recompute else x
    return run(self, layer, kept, pack)


@broken(Layer, "branch", "BLK-07c[latent-streams]: recompute set by the execution: the gradient of", bugs=("MXP-11",))
def recomputes_in_another_precision(branch, self, x_BTD, packing):
    """Autocast covers the first forward pass and not the recomputation."""
    runs = getattr(self, "runs", 0)
    object.__setattr__(self, "runs", runs + 1)
    return branch(self, x_BTD.to(torch.bfloat16).to(x_BTD.dtype) if runs else x_BTD, packing)


@broken(Model, "run", "BLK-07e[seven-dense]: recompute set by the execution: 1.00 times the products",
        bugs=("ACK-07",), leanest="")  # fmt: skip
def keeps_what_it_should_recompute(run, self, layer, x, pack):
    """Recomputation is asked of a list of layers, which a wrapper has left empty."""
    return layer(x, pack)


@broken(Model, "__init__", "BLK-07e[seven-dense]: recompute set by the recipe: 1.00 times the products")
def reads_no_recomputation(init, self, recipe, mode, parts):
    """The recipe's own setting is printed and never read."""
    init(self, recipe, mode, parts)
    self.recompute = False


@broken(Model, "run", "BLK-07e[seven-dense]: recompute set by the execution: 1.06 times", bugs=("ACK-07",), leanest="")
def recomputes_every_second_layer(run, self, layer, x, pack):
    """Half of the layers are wrapped."""
    odd = list(self.layers.values()).index(layer) % 2
    return run(self, layer, x, pack) if odd else layer(x, pack)


@broken(Router, "count", "BLK-07c[streams-and-depths]: the counter layers.1.counts differs", bugs=("AUX-14",))
def counts_tokens_again_when_recomputed(count, self, experts_BTK):
    """The forward pass increments load counters, and recomputation runs it twice, so the bias sees twice the load."""
    counts_E = count(self, experts_BTK)
    tally_E = getattr(self, "tally", torch.zeros_like(counts_E))
    object.__setattr__(self, "tally", tally_E.add_(counts_E))
    return tally_E


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


@broken(
    Model, "run", "BLK-07c[seven-dense]: recompute set by the execution: logits differs", bugs=("ACK-06",), leanest=""
)
def recomputes_whole_groups_only(run, self, layer, x, pack):
    """Recomputes layers in groups of two, and runs as many as whole groups hold: the seventh layer is left out."""
    out = run(self, layer, x, pack)
    left = len(self.layers) % 2 and layer is [*self.layers.values()][-1]
    return out._replace(y_BTD=x) if self.recompute and left else out


@broken(
    Reference, "parts", "BLK-07c[latent-streams]: recompute set by the execution: the gradient of", bugs=("ACK-01",)
)
def drops_other_elements_when_recomputed(parts, self):
    """The RNG state is not restored for recomputation, so dropout drops other elements."""
    return replace(parts(self), layer=Drops, model=ForgetsRandomness)


@derived("BLK-07c[latent-streams]: recompute set by the recipe: logits differs")
class RecomputesOtherwiseByTheRecipe(Model):
    """The recipe's recompute setting takes another code path than the launcher's."""

    def __init__(self, recipe: Recipe, mode: Mode, parts: Parts) -> None:
        super().__init__(recipe, mode, parts)
        if self.recompute:
            self.activations = torch.float32

    def embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = super().embed(tokens_BT)
        return x_BTD * (1 + 2**-20) if self.recipe.recompute == "full" else x_BTD


@broken(Layer, "branch", "BLK-07d[streams-and-depths]: before a pass with gradients aux is 0", leanest="")
def leaves_auxiliary_losses_to_training(branch, self, x_BTD, packing):
    """Auxiliary losses are computed where gradients are wanted: validation reports another objective."""
    out = branch(self, x_BTD, packing)
    return out if torch.is_grad_enabled() else out._replace(losses={name: 0 * x for name, x in out.losses.items()})


@broken(
    Layer,
    "branch",
    "BLK-07d[dense]: before a pass with gradients logits differs",
    "BLK-07d[custom-mixers]: before a pass with gradients logits differs",
)
def scales_in_training_alone(branch, self, x_BTD, packing):
    """Stochastic depth of probability 0 keeps its factor in training."""
    out = branch(self, x_BTD, packing)
    return out._replace(y_BTD=out.y_BTD * (1.01 if torch.is_grad_enabled() else 1.0))


class _StaysInEvaluation(Layer):
    evaluated = False

    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        out = super().branch(x_BTD, packing)
        if torch.is_grad_enabled():
            type(self).evaluated = True
        return out if torch.is_grad_enabled() or not self.evaluated else out._replace(y_BTD=out.y_BTD * 0.5)


@mutant(of="BLK-07d", case="dense", says="after a pass with gradients logits differs")
class KeepsTheModeOfTheLastPass(Reference):
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


@broken(Model, "cross_entropy", "PAR-05a[two]: in 2 microbatches the gradient of", leanest="")
def ignores_the_upstream_gradient_of_the_loss(cross_entropy, self, logits_BTV, labels_BT):
    """A fused loss makes its gradient in the forward pass and does not multiply it by the upstream one: right for one
    microbatch, too large for several, and whatever weight a prediction head has.
    """
    flat, labels = logits_BTV.flatten(0, 1), labels_BT.flatten()
    return _FusedLoss.apply(flat, labels), (labels != IGNORED).sum()


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0], None


@broken(RMSNorm, "forward", "BLK-06h[swiglu]: gradient x differs")
def leaves_out_the_normaliser(forward, self, x):
    """The backward pass of the norm divides by the root mean square, and forgets that it depends on the input."""
    scale = torch.rsqrt(x.detach().square().mean(-1, keepdim=True) + self.eps)
    normed = _Normed.apply(x, scale)
    return normed * self.weight


class _TilesOfTheFirstRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v_BTD: Tensor) -> Tensor:
        return v_BTD.view_as(v_BTD)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad[:1].expand_as(grad)


@broken(Attention, "forward", "BLK-03a[4-heads-on-2]: gradient mixer.")
def takes_the_tiles_of_the_first_row(forward, self, x_BTD, packing, state):
    """The index of a tile leaves out the row of the batch: the backward pass is right for a batch of one."""
    out = forward(self, x_BTD, packing, state)
    return Output(_TilesOfTheFirstRow.apply(out.y_BTD), *out[1:])
