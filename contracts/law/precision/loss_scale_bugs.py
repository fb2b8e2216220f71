"""Loss scales that leave something in the run, or are left out of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from contracts.law._bugs.numeric import (
    Batch,
    ModelOutput,
    ParallelTrainer,
    Trainer,
    broken,
    derived,
    local_part,
    mutant,
    with_attributes,
)


@broken(Trainer, "follow", "PREC-05a[letters]: a step that overflowed moved something: the weight")
def steps_with_infinite_gradients(follow, self, norm):
    """The scale falls, and the optimizer steps all the same: NaN in every moment."""
    follow(self, norm)
    return True


@broken(Trainer, "follow", "PREC-05a[letters]: a step that overflowed moved something: the buffer", leanest="")
def moves_biases_by_a_skipped_step(follow, self, norm):
    """The bias of a router is no parameter: a step that was left out moves it."""
    taken = follow(self, norm)
    for name, bias in self.model.named_buffers():
        if name.endswith("router.bias") and not taken:
            bias.add_(self.recipe.moe.bias_rate if self.recipe.moe else 0)
    return taken


@broken(Trainer, "follow", "PREC-05a[dense]: the loss scale is 65536 after two steps that overflowed")
def keeps_the_scale(follow, self, norm):
    """The scale never falls: a run that overflows once overflows for good."""
    scale, taken = self.scale, follow(self, norm)
    self.scale = scale
    return taken


@broken(Trainer, "follow", "PREC-05a[dense]: a step that overflowed moved something: the optimizer state")
def counts_a_skipped_step(follow, self, norm):
    """The optimizer counts steps that were left out, and corrects its bias as if it had taken them."""
    taken = follow(self, norm)
    if not taken:
        for state in self.optimizer.rules["adamw"].state.values():
            state["step"] += 100
    return taken


@broken(Trainer, "follow", "PREC-05j[muon]: gradients overflow moved: the weight")
def each_optimizer_looks_for_itself(follow, self, norm):
    """A scaler that is asked by two optimizers: the one whose own gradients are finite steps."""
    taken, rate = follow(self, norm), self.rate(self.recipe.optim, self.number + 1)
    for rule in () if taken else self.optimizer.rules.values():
        own = [each.grad for group in rule.param_groups for each in group["params"]]
        if all(bool(grad.isfinite().all()) for grad in own):
            for group in rule.param_groups:
                group["lr"] = rate
            rule.step()
    return taken


@broken(Trainer, "follow", "PREC-05o[dense]: each of 24 steps overflows: the loss scale is 16384, 32768 after")
def keeps_a_floor(follow, self, norm):
    """The least loss scale is a constant of the trainer, far above what these gradients can take."""
    taken = follow(self, norm)
    self.scale = max(self.scale, 2.0**14) if self.recipe.dtype == "fp16" else self.scale
    return taken


@derived("PREC-05j[adamw]: gradients overflow moved: the weight")
class AsksTheLossAlone(Trainer):
    """A step is left out where the loss is not finite; after a finite loss a gradient may overflow."""

    loss = 0.0

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        passed = super().passes(window, counts)
        self.loss = sum(float(each.sums["lm"]) for each in passed)
        return passed

    def follow(self, norm: float) -> bool:
        return super().follow(self.loss)


class _AsksItsOwnRows(ParallelTrainer):
    here = True

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        passed = super().passes(window, counts)
        self.here = all(math.isfinite(float(each.sums["lm"])) for each in passed)
        return passed

    def follow(self, norm: float) -> bool:
        return super().follow(1.0 if self.here else math.inf)


with_attributes(
    "AsksItsOwnRows",
    "Looks for infinities before gradients are reduced: the ranks without one take the step.",
    "PREC-05f[fsdp2]: a step that overflowed on one rank moved something: the weight",
    "PREC-05f[dp2]: a step that overflowed on one rank moved something: the weight",
    owner=_AsksItsOwnRows,
)


@broken(
    _AsksItsOwnRows, "follow", "PREC-05f[fsdp2]: the loss scale is 65536 after two steps that overflowed on one rank"
)
def keeps_its_own_scale(follow, self, norm):
    """All ranks leave the step out, and the scale falls where the row lies: the next sum adds two scales."""
    scale, taken = self.scale, ParallelTrainer.follow(self, norm)
    self.scale = scale if self.here else self.scale
    return taken


@broken(
    Trainer,
    "accumulate",
    "PREC-05b[dense]: under float16 the gradient of",
    "PREC-05b[letters]: under float16 the gradient of",
)
def scales_no_loss(accumulate, self, micro, counts):
    """float16 without a loss scale: gradients below 6e-8 are 0."""
    self.scale = 1.0
    return accumulate(self, micro, counts)


@mutant(of="PREC-05b", case="balance-loss", says="under float16 the gradient of", leanest="times that in float32")
@broken(
    Trainer,
    "accumulate",
    "PREC-05b[prediction-heads]: under float16 the gradient of",
    "PREC-05b[z-loss]: times that in float32",
)
def scales_the_loss_of_labels_alone(accumulate, self, micro, counts):
    """Losses of routers and heads enter after the scale: they weigh a 65536th of what the recipe says."""
    out = self.model(*micro)
    losses = self.model.objective(out.sums, counts)
    (losses["total"] + losses["lm"] * (self.scale - 1)).backward()
    nothing = out.logits_BTV.new_empty(0)
    sums = {name: each.detach() for name, each in out.sums.items()}
    return out._replace(logits_BTV=nothing, mtp_logits=(), sums=sums)


@broken(Trainer, "step_over", "PREC-05b[dense]: under float16 lm is")
def tells_a_scaled_loss(step_over, self, window, wanted=False, samples=()):
    """What is logged is the number that went into the backward pass (tnt #354)."""
    scale, done = self.scale, step_over(self, window, wanted, samples)
    return replace(done, losses={name: loss * scale for name, loss in done.losses.items()})


@broken(Trainer, "unscale", "PREC-05b[dense]: e+04 times that in float32")
def leaves_the_scale_in(unscale, self):
    """Gradients are clipped, and their norm is reported, with the scale still in them."""


@broken(
    Trainer,
    "position",
    "PREC-05c[letters]: the loss scale is 65536 resumed, 32768 without",
    "PREC-05c[dense]: the loss scale is 65536 resumed, 32768 without",
)
def forgets_the_scale(position, self):
    """The checkpoint has weights and moments, and no loss scale."""
    return {name: each for name, each in position(self).items() if name != "loss_scale"}


@broken(
    ParallelTrainer,
    "load",
    "PREC-05i[fsdp2]: the loss scale is 65536 resumed, 16384 without",
    "PREC-05i[dp2]: the loss scale is 65536 resumed, 16384 without",
)
def forgets_the_scale_on_ranks(load, self, state, position):
    """On ranks a load makes the optimizer's state after the scale's, and sets it back (accelerate #4289)."""
    scale = self.scale
    load(self, state, position)
    self.scale = scale


@broken(
    Trainer,
    "saved",
    "PREC-05c[the-first-step-under-muon]: is missing from the checkpoint of step 1",
    "PREC-05c[the-first-step]: is missing from the checkpoint of step 1",
)
def saves_no_state_before_the_first_step(saved, self):
    """Moments begin with the first step that is taken: a save before it has none, and its load misses them."""
    held = saved(self)
    kept = {name: each for name, each in held.tensors.items() if self.optimizer.state() or "optimizer/" not in name}
    return replace(held, tensors=kept if self.number else held.tensors)


@broken(ParallelTrainer, "load", "PREC-05i[fsdp2-the-first-steps]: resumed after steps that overflowed, the weight")
def makes_its_state_by_a_step(load, self, state, position):
    """The state that a load needs is made by a step without gradients, and that step decays."""
    load(self, state, position)
    if not any(bool(local_part(each).any()) for each in self.optimizer.state().values()):
        self.optimizer.clip()  # gives every parameter a gradient of zeros
        self.optimizer.step(self.rate(self.recipe.optim, self.number + 1))


@broken(ParallelTrainer, "resume", "PREC-05i[fsdp2-to-tp2]: the loss scale is 65536 resumed, 16384 without")
def keeps_the_scale_with_the_generators(resume, self, folder):
    """The scale lies with the state of each rank, and on another layout it begins anew as that does."""
    scale = self.scale
    resume(self, folder)
    kept = self.kept(folder).opened().position
    if any(kept.get(f"layout.{name}", size) != size for name, size in self.layout().items()):
        self.scale = scale


@broken(ParallelTrainer, "load", "PREC-05i[tp2]: resumed, 16384 without")
def scales_the_first_rank_alone(load, self, state, position):
    """The scale is a file that the first rank reads: the others begin anew."""
    scale = self.scale
    load(self, state, position)
    self.scale = self.scale if self.mesh.rank == 0 else scale
