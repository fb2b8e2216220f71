"""Runs whose data stands still, jumps or goes back where a step overflows."""

import math

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.training.trainer import Trainer


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
