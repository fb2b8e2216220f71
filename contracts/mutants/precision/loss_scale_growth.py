"""Loss scales that never rise, or too soon."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.training.trainer import Trainer


class _NeverRises(Trainer):
    def follow(self, norm: float) -> bool:
        self.finite = 0
        return super().follow(norm)


@mutant(of="PREC-05e", case="dense", says="the loss scale is 65536 behind 2003 finite steps, and was in each")
class NeverRaisesTheScale(Trained):
    """The count of finite steps is cleared in every step: the scale only falls."""

    trains = _NeverRises


class _CountsAnew(Trainer):
    def position(self) -> dict[str, int]:
        return {name: each for name, each in super().position().items() if name != "finite"}


@mutant(
    of="PREC-05e", case="dense", says="the loss scale of step 2000 is 65536 resumed behind step 1990, 131072 without"
)
class CountsFiniteStepsAnew(Trained):
    """The checkpoint has the scale, and not how many steps were finite since it moved."""

    trains = _CountsAnew


class _GoesOnCounting(Trainer):
    def follow(self, norm: float) -> bool:
        before, taken = self.finite, super().follow(norm)
        self.finite = self.finite if taken else before
        return taken


@mutant(of="PREC-05k", case="dense", says="the loss scale rises in step 2002, 501 steps behind one that overflowed")
class GoesOnCountingBehindAnOverflow(Trained):
    """A step that overflows halves the scale, and leaves the count of finite steps as it was."""

    trains = _GoesOnCounting
