"""Optimizer steps that are wrong by a factor, an order or a sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.broken import broken
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.model.blocks.attention import Indexer
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.optim.optimizer import Muon, Optimizer, orthogonalise
from contracts.stacks.reference.training.trainer import Batch, Trainer


# AdamW
@broken(Optimizer, "groups", "OPT-04a[gradients-as-small-as-epsilon]: the adamw move of")
def adds_a_larger_epsilon(groups, self, rule):
    """Epsilon acts as if it were under the root, where 1e-8 is 1e-4 beside it: small gradients move nothing."""
    found = groups(self, rule)
    return [{**group, "eps": 1e-4} for group in found] if rule == "adamw" else found


@broken(Optimizer, "step", "OPT-04a[other-betas]: the adamw move of embedding.weight differs", bugs=("RSM-40",))
def counts_synthetic_steps(step, self, lr):
    """State was initialised by synthetic steps whose number stays, so bias correction no longer happens."""
    for value in (held for rule in self.rules.values() for held in rule.state.values()):
        if "step" in value:
            value["step"].fill_(1000.0)
    step(self, lr)


@broken(Optimizer, "step", "OPT-04a[warming-up-and-clipped]: the adamw move of embedding.weight differs")
def decays_by_the_full_rate(step, self, lr):
    """Decay follows the recipe's rate, not the scheduled one: strongest in the warm-up, when steps are smallest."""
    with torch.no_grad():
        for member in self.members:
            member.parameter.mul_(1 - (self.optim.lr - lr) * self.decay(member))
    step(self, lr)


class _LateRate(Optimizer):
    before: float | None = None

    def step(self, lr: float) -> None:
        super().step(self.before if self.before is not None else lr)
        self.before = lr


@mutant(of="OPT-04a", case="warming-up-and-clipped", says="(step 2)")
class AppliesTheRateOfTheStepBefore(Trained):
    """The rate is set after the step and reported as if before, so each step uses the rate of the previous one."""

    moves = _LateRate


@broken(Optimizer, "clip", "OPT-04b[adamw]: exp_avg of embedding.weight differs")
def steps_before_it_clips(clip, self):
    """The norm is right and the factor is reported, but the step used the unclipped gradients."""
    norm, coefficient = clip(self)
    for member in self.members:
        assert member.parameter.grad is not None
        member.parameter.grad.div_(coefficient)
    return norm, coefficient


@broken(
    Optimizer,
    "clip",
    "OPT-04g[dense]: of a gradient a little over differs",
    "OPT-04g[letters]: of a gradient a little over differs",
)
def clips_from_twice_the_limit(clip, self):
    """Tells the factor, and applies it from twice the limit on."""
    kept = [None if each.parameter.grad is None else each.parameter.grad.clone() for each in self.members]
    norm, coefficient = clip(self)
    for member, grad in zip(self.members, kept, strict=True) if coefficient > 0.5 else ():
        member.parameter.grad = torch.zeros_like(member.parameter) if grad is None else grad
    return norm, coefficient


@broken(Optimizer, "clip", "OPT-04b[muon]: exp_avg of")
def clips_group_by_group(clip, self):
    """Each parameter group is also clipped by itself, which changes the direction of the whole step."""
    found = clip(self)
    for rule in self.rules.values():
        for group in rule.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 0.3 * self.optim.clip)
    return found


@broken(Optimizer, "step", "OPT-04b[adamw]: exp_avg of embedding.weight differs", bugs=("OPT-24",))
def divides_gradients_twice(step, self, lr):
    """Gradients are averaged over the microbatches once more before the step; Adam's first move hides the factor."""
    for member in self.members:
        assert member.parameter.grad is not None
        member.parameter.grad.div_(4)
    step(self, lr)


class _TheOtherWayRound(torch.optim.AdamW):
    def __init__(self, groups: Any, *, betas: tuple[float, float], **named: Any) -> None:
        super().__init__(groups, betas=(1 - betas[0], 1 - betas[1]), **named)


class _AveragesTheOtherWay(Optimizer):
    adamw = _TheOtherWayRound


@mutant(of="OPT-04b", case="adamw", says="exp_avg of embedding.weight differs", leanest="")
class AveragesTheOtherWayRound(Trained):
    """`lerp` takes the weight of the new value, and gets that of the old one: moments are nearly the last gradient."""

    moves = _AveragesTheOtherWay


# Muon
class _PlainMomentum(Muon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        buffer.mul_(momentum).add_(grad)
        return orthogonalise(buffer)


class _WithPlainMomentum(Optimizer):
    muon = _PlainMomentum


@mutant(of="OPT-04a", case="muon", says="the muon move of")
class LeavesOutNesterov(Trained):
    """The buffer itself is orthogonalized, without Nesterov's look-ahead."""

    moves = _WithPlainMomentum


class _Backward(Muon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        buffer.mul_(momentum).add_(grad)
        return orthogonalise(grad - momentum * buffer)


class _LooksBack(Optimizer):
    muon = _Backward


@mutant(of="OPT-04a", case="muon-never-clipped", says="the muon move of")
class LooksBackInsteadOfAhead(Trained):
    """Nesterov's correction has the wrong sign."""

    moves = _LooksBack


class _Keller(Muon):
    def scale(self, matrix: Tensor) -> float:
        outputs, inputs = matrix.shape[-2:]
        return float(max(1.0, outputs / inputs) ** 0.5)


class _KellerScaled(Optimizer):
    muon = _Keller


@mutant(of="OPT-04a", case="muon", says="the muon move of")
class ScalesAsForAnotherRate(Trained):
    """The scale is sqrt(max(1, out / in)) under a rate tuned for AdamW, so steps are several times too large."""

    moves = _KellerScaled


class _OnTheGradient(Muon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        turned = orthogonalise(grad)
        buffer.mul_(momentum).add_(turned)
        return turned + momentum * buffer


class _OrthogonalFirst(Optimizer):
    muon = _OnTheGradient


@mutant(of="OPT-04a", case="muon", says="the muon move of")
class OrthogonalizesBeforeMomentum(Trained):
    """Momentum accumulates orthogonalized gradients, so the applied update is no longer orthogonal."""

    moves = _OrthogonalFirst


class _Rounds(Muon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        buffer.mul_(momentum).add_(grad)
        return orthogonalise((grad + momentum * buffer).bfloat16()).to(grad.dtype)


class _Rounded(Optimizer):
    muon = _Rounds


@mutant(of="OPT-04a", case="muon", says="the muon move of")
class OrthogonalizesInBfloat16(Trained):
    """Products are rounded to bfloat16, and the stack does not declare it."""

    moves = _Rounded


class _RoundsPlainMomentum(Muon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        buffer.mul_(momentum).add_(grad)
        return orthogonalise(buffer.bfloat16()).to(grad.dtype)


class _RoundedPlainMomentum(Optimizer):
    muon = _RoundsPlainMomentum


@mutant(of="OPT-04a", case="muon", says="and products in bfloat16 by")
class DeclaresRoundingAndLeavesOutNesterov(Trained):
    """Declares products in bfloat16, and hides behind them that it has no Nesterov momentum."""

    conventions = {"muon-products": "bfloat16"}
    moves = _RoundedPlainMomentum


@mutant(of="OPT-04a", case="muon", says="products in bfloat16, as declared, by")
class DeclaresProductsInBfloat16(Trained):
    """Declares products in bfloat16, and rounds none."""

    conventions = {"muon-products": "bfloat16"}


# state and gradients that stay
@broken(Trainer, "build", "OPT-05a[bf16]: is held in bfloat16, expected float32", bugs=("OPT-28",))
def trains_without_masters(build, self):
    """The embedding is cast before the optimizer is made, so its weights and moments are bfloat16."""
    model = build(self)
    model.embedding.to(model.activations)
    return model


@broken(Trainer, "step", "OPT-05a[bf16-muon]: moved by 0 in a first step")
def rounds_weights_after_the_step(step, self, batch, wanted=False, samples=()):
    """The float32 master weights are read back from the bfloat16 copy, so small steps are lost."""
    done = step(self, batch, wanted, samples)
    with torch.no_grad():
        for parameter in self.model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return done


@broken(Optimizer, "zero", "OPT-04c[adamw]: the second step's gradient of")
def never_zeroes_gradients(zero, self):
    """zero_grad is never called, so every gradient of the run accumulates."""
    pass


@broken(Optimizer, "zero", "OPT-04c[muon]: the second step's gradient of")
def zeroes_one_optimizer_of_two(zero, self):
    """zero_grad is called on the first of two optimizers, so Muon's gradients accumulate."""
    for rule, optimizer in self.rules.items():
        if rule == "adamw":
            optimizer.zero_grad()


class _SelectsOnce(Indexer):
    held: Tensor | None = None

    def select(self, scores_BTS: Tensor, visible_BTS: Tensor) -> Tensor:
        if self.held is None or self.held.shape != visible_BTS.shape:
            self.held = super().select(scores_BTS, visible_BTS)
        return self.held & visible_BTS


@mutant(of="OPT-04c", case="sparse", says="the second step's lm is")
class KeepsTheKeysOfTheFirstPass(Exchanged):
    """Selected keys wait on an object that outlives the pass, for a layer that shares them, and no pass resets it
    (review of Megatron-LM #6020).
    """

    exchange = {"indexer": _SelectsOnce}


class _ComputesWithOldWeights(Trainer):
    """Every second step computes with 16-bit copies that the step before made."""

    copies: Mapping[str, Tensor] = {}

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        held = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        if self.number % 2 and self.copies:
            self.put(self.copies, dict(self.model.named_parameters()), "weights")
        found = super().passes(window, counts)
        self.put(held, dict(self.model.named_parameters()), "weights")
        self.copies = held
        return found


@mutant(of="OPT-04c", case="half", says="the second step's lm is")
class LeavesItsCopiesAStepBehind(Trained):
    """The 16-bit copies of the weights are made anew before the update, and not behind it."""

    trains = _ComputesWithOldWeights


@mutant(of="OPT-04c", case="fp8", says="the second step's lm is")
class KeepsWeightsInFp8OfTheStepBefore(Trained):
    """Weights in FP8 are cached for the microbatches of a step, and the cache is not emptied behind the step."""

    trains = _ComputesWithOldWeights


@broken(Optimizer, "groups", "OPT-04a[no-first-moment]: the adamw move of")
def takes_a_beta_of0_for_none(groups, self, rule):
    """`beta1 or 0.9`: whoever turns the first moment off gets the default."""
    found, betas = groups(self, rule), (self.optim.beta1 or 0.9, self.optim.beta2)
    return [{**group, "betas": betas} for group in found] if rule == "adamw" else found
