"""Loss scales that never rise or rise too soon, data that an overflow moves, and ranks that each look at their own
part."""

import math

from contracts.law._bugs.numeric import ParallelTrainer, Trainer, broken, learning_rate, local_part, with_attributes
from contracts.spec import Optim


@broken(Trainer, "follow", "PREC-05e[dense]: the loss scale is 65536 after 2003 finite steps, and was in each")
def never_raises_the_scale(follow, self, norm):
    """The count of finite steps is cleared in every step: the scale only falls."""
    self.finite = 0
    return follow(self, norm)


@broken(
    Trainer,
    "position",
    "PREC-05e[dense]: the loss scale of step 2000 is 65536 resumed after step 1990, 131072 without",
)
def counts_finite_steps_anew(position, self):
    """The checkpoint has the scale, and not how many steps were finite since it moved."""
    return {name: each for name, each in position(self).items() if name != "finite"}


@broken(Trainer, "follow", "PREC-05k[dense]: the loss scale rises in step 2002, 501 steps after one that overflowed")
def goes_on_counting_behind_an_overflow(follow, self, norm):
    """A step that overflows halves the scale, and leaves the count of finite steps as it was."""
    before, taken = self.finite, follow(self, norm)
    self.finite = self.finite if taken else before
    return taken


@broken(Trainer, "next", "PREC-05n[dense]: each once is an epoch")
def repeats_the_data_of_a_lost_step(next, self, wanted=False):
    """The place in the data moves on with the optimizer: the same sequences overflow until the scale has fallen."""
    before, done = self.consumed, next(self, wanted)
    if not math.isfinite(done.grad_norm):
        self.consumed = before
    return done


@broken(Trainer, "next", "PREC-05n[dense]: each once is an epoch")
def skips_the_data_after_a_lost_step(next, self, wanted=False):
    """Over-correction: what was lost is skipped once more, by the loop and by the scaler."""
    before, done = self.consumed, next(self, wanted)
    if not math.isfinite(done.grad_norm):
        self.consumed += self.consumed - before
    return done


class _RateOfStepsTaken(Trainer):
    left_out = 0

    def follow(self, norm: float) -> bool:
        taken = super().follow(norm)
        self.left_out += not taken
        return taken

    def rate(self, optim: Optim, step: int) -> float:
        return learning_rate(optim, step - self.left_out)


with_attributes(
    "ForgetsHowManyStepsItLeftOut",
    "The schedule waits where a step overflows, and no checkpoint says how often it has waited.",
    "PREC-05n[dense]: has the rate",
    owner=_RateOfStepsTaken,
)


@broken(Trainer, "position", "PREC-05n[dense]: resumed after step")
def saves_the_place_of_the_last_good_step(position, self):
    """A checkpoint has the place in the data after the last step that moved something."""
    found = position(self)
    if self.finite == 0 and self.number:
        found["consumed"] -= self.recipe.batch.total
    return found


@broken(Trainer, "load", "PREC-05n[dense]: has the scale")
def begins_with_the_first_scale(load, self, state, position):
    """The loss scale is none of the state: each resumed run begins with the first one."""
    load(self, state, {name: each for name, each in position.items() if name != "loss_scale"})


@broken(
    ParallelTrainer,
    "follow",
    "PREC-05l[fsdp2]: part of a gradient moved: the weight",
    "PREC-05l[tp2-sp]: part of a gradient moved: the weight",
)
def looks_at_its_own_part(follow, self, norm):
    """One process checks for infinities so: it looks at what this rank holds, and asks nobody."""
    parts = [local_part(each.grad) for each in self.model.parameters() if each.grad is not None]
    return follow(self, 1.0 if all(bool(part.isfinite().all()) for part in parts) else float("inf"))
