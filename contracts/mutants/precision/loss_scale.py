"""Loss scales that leave something in the run, or are left out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.checkpoint.checkpoint import State
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.placements import local_part
from contracts.stacks.reference.training.trainer import Batch, StepResult, Trainer


class _StepsAnyway(Trainer):
    def follow(self, norm: float) -> bool:
        super().follow(norm)
        return True


@mutant(of="PREC-05a", case="letters", says="a step that overflowed moved something: the weight")
class StepsWithInfiniteGradients(Trained):
    """The scale falls, and the optimizer steps all the same: NaN in every moment."""

    trains = _StepsAnyway


class _MovesBiases(Trainer):
    def follow(self, norm: float) -> bool:
        taken = super().follow(norm)
        for name, bias in self.model.named_buffers():
            if name.endswith("router.bias") and not taken:
                bias.add_(self.recipe.moe.bias_rate if self.recipe.moe else 0)
        return taken


@mutant(of="PREC-05a", case="letters", says="a step that overflowed moved something: the buffer", leanest="")
class MovesBiasesByASkippedStep(Trained):
    """The bias of a router is no parameter: a step that was left out moves it."""

    trains = _MovesBiases


class _Keeps(Trainer):
    def follow(self, norm: float) -> bool:
        scale, taken = self.scale, super().follow(norm)
        self.scale = scale
        return taken


@mutant(of="PREC-05a", case="dense", says="the loss scale is 65536 behind two steps that overflowed")
class KeepsTheScale(Trained):
    """The scale never falls: a run that overflows once overflows for good."""

    trains = _Keeps


class _CountsSkipped(Trainer):
    def follow(self, norm: float) -> bool:
        taken = super().follow(norm)
        if not taken:
            for state in self.optimizer.rules["adamw"].state.values():
                state["step"] += 100
        return taken


@mutant(of="PREC-05a", case="dense", says="a step that overflowed moved something: the optimizer state")
class CountsASkippedStep(Trained):
    """The optimizer counts steps that were left out, and corrects its bias as if it had taken them."""

    trains = _CountsSkipped


class _EachForItself(Trainer):
    def follow(self, norm: float) -> bool:
        taken, rate = super().follow(norm), self.rate(self.recipe.optim, self.number + 1)
        for rule in () if taken else self.optimizer.rules.values():
            own = [each.grad for group in rule.param_groups for each in group["params"]]
            if all(bool(grad.isfinite().all()) for grad in own):
                for group in rule.param_groups:
                    group["lr"] = rate
                rule.step()
        return taken


@mutant(of="PREC-05j", case="muon", says="gradients overflow moved: the weight")
class EachOptimizerLooksForItself(Trained):
    """A scaler that is asked by two optimizers: the one whose own gradients are finite steps."""

    trains = _EachForItself


class _AsksTheLoss(Trainer):
    loss = 0.0

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        passed = super().passes(window, counts)
        self.loss = sum(float(each.sums["lm"]) for each in passed)
        return passed

    def follow(self, norm: float) -> bool:
        return super().follow(self.loss)


@mutant(of="PREC-05j", case="adamw", says="gradients overflow moved: the weight")
class AsksTheLossAlone(Trained):
    """A step is left out where the loss is not finite; behind a finite loss a gradient may overflow."""

    trains = _AsksTheLoss


class _AsksItsOwnRows(ParallelTrainer):
    here = True

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        passed = super().passes(window, counts)
        self.here = all(math.isfinite(float(each.sums["lm"])) for each in passed)
        return passed

    def follow(self, norm: float) -> bool:
        return super().follow(1.0 if self.here else math.inf)


@mutant(of="PREC-05f", case="dp2", says="a step that overflowed on one rank moved something: the weight")
@mutant(of="PREC-05f", case="fsdp2", says="a step that overflowed on one rank moved something: the weight")
class AsksItsOwnRows(Spread):
    """Looks for infinities before gradients are reduced: the ranks without one take the step."""

    trains = _AsksItsOwnRows


class _KeepsItsOwnScale(_AsksItsOwnRows):
    def follow(self, norm: float) -> bool:
        scale, taken = self.scale, ParallelTrainer.follow(self, norm)
        self.scale = scale if self.here else self.scale
        return taken


@mutant(of="PREC-05f", case="fsdp2", says="the loss scale is 65536 behind two steps that overflowed on one rank")
class KeepsItsOwnScale(Spread):
    """All ranks leave the step out, and the scale falls where the row lies: the next sum adds two scales."""

    trains = _KeepsItsOwnScale


class _Unscaled(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        self.scale = 1.0
        return super().accumulate(micro, counts)


@mutant(of="PREC-05b", case="letters", says="under float16 the gradient of")
@mutant(of="PREC-05b", case="dense", says="under float16 the gradient of")
class ScalesNoLoss(Trained):
    """float16 without a loss scale: gradients below 6e-8 are 0."""

    trains = _Unscaled


class _ScalesLabels(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out: ModelOutput = self.model(*micro)
        losses = self.model.objective(out.sums, counts)
        (losses["total"] + losses["lm"] * (self.scale - 1)).backward()  # type: ignore[no-untyped-call]  # torch's
        nothing = out.logits_BTV.new_empty(0)
        sums = {name: each.detach() for name, each in out.sums.items()}
        return out._replace(logits_BTV=nothing, mtp_logits=(), sums=sums)


@mutant(of="PREC-05b", case="balance-loss", says="under float16 the gradient of", leanest="times that in float32")
@mutant(of="PREC-05b", case="z-loss", says="times that in float32")
@mutant(of="PREC-05b", case="prediction-heads", says="under float16 the gradient of")
class ScalesTheLossOfLabelsAlone(Trained):
    """Losses of routers and heads enter behind the scale: they weigh a 65536th of what the recipe says."""

    trains = _ScalesLabels


class _TellsScaled(Trainer):
    def step_over(self, window: Sequence[Batch], wanted: bool = False, samples: tuple[int, ...] = ()) -> StepResult:
        scale, done = self.scale, super().step_over(window, wanted, samples)
        return replace(done, losses={name: loss * scale for name, loss in done.losses.items()})


@mutant(of="PREC-05b", case="dense", says="under float16 lm is")
class TellsAScaledLoss(Trained):
    """What is logged is the number that went into the backward pass (tnt #354)."""

    trains = _TellsScaled


class _LeavesTheScale(Trainer):
    def unscale(self) -> None:
        pass


@mutant(of="PREC-05b", case="dense", says="e+04 times that in float32")
class LeavesTheScaleIn(Trained):
    """Gradients are clipped, and their norm is told, with the scale still in them."""

    trains = _LeavesTheScale


class _BeginsAnew(Trainer):
    def position(self) -> dict[str, int]:
        return {name: each for name, each in super().position().items() if name != "loss_scale"}


@mutant(of="PREC-05c", case="dense", says="the loss scale is 65536 resumed, 32768 without")
@mutant(of="PREC-05c", case="letters", says="the loss scale is 65536 resumed, 32768 without")
class ForgetsTheScale(Trained):
    """The checkpoint has weights and moments, and no loss scale."""

    trains = _BeginsAnew


class _BeginsAnewOnRanks(ParallelTrainer):
    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        scale = self.scale
        super().load(state, position)
        self.scale = scale


@mutant(of="PREC-05i", case="dp2", says="the loss scale is 65536 resumed, 16384 without")
@mutant(of="PREC-05i", case="fsdp2", says="the loss scale is 65536 resumed, 16384 without")
class ForgetsTheScaleOnRanks(Spread):
    """On ranks a load makes the optimizer's state behind the scale's, and sets it back (accelerate #4289)."""

    trains = _BeginsAnewOnRanks


class _SavesNoState(Trainer):
    def saved(self) -> State:
        held = super().saved()
        kept = {name: each for name, each in held.tensors.items() if self.optimizer.state() or "optimizer/" not in name}
        return replace(held, tensors=kept if self.number else held.tensors)


@mutant(of="PREC-05c", case="the-first-step", says="is missing from the checkpoint of step 1")
@mutant(of="PREC-05c", case="the-first-step-under-muon", says="is missing from the checkpoint of step 1")
class SavesNoStateBeforeTheFirstStep(Trained):
    """Moments begin with the first step that is taken: a save before it has none, and its load misses them."""

    trains = _SavesNoState


class _MakesState(ParallelTrainer):
    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        super().load(state, position)
        if not any(bool(local_part(each).any()) for each in self.optimizer.state().values()):
            self.optimizer.clip()  # gives every parameter a gradient of zeros
            self.optimizer.step(self.rate(self.recipe.optim, self.number + 1))


@mutant(of="PREC-05i", case="fsdp2-the-first-steps", says="resumed behind steps that overflowed, the weight")
class MakesItsStateByAStep(Spread):
    """The state that a load needs is made by a step without gradients, and that step decays."""

    trains = _MakesState


class _ScalesTheFirst(ParallelTrainer):
    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        scale = self.scale
        super().load(state, position)
        self.scale = self.scale if self.mesh.rank == 0 else scale


@mutant(of="PREC-05i", case="tp2", says="resumed, 16384 without")
class ScalesTheFirstRankAlone(Spread):
    """The scale is a file that the first rank reads: the others begin anew."""

    trains = _ScalesTheFirst
