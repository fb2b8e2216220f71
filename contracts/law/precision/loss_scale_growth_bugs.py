"""Loss scales that never rise, or too soon."""

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.training.trainer import Trainer


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
