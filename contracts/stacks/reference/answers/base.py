"""What every side of the reference that computes is assembled of: the table of parts, and the class that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is loaded when something is computed, not when the stack is introduced
    from contracts.stacks.reference.model.parts import Parts
    from contracts.stacks.reference.training.trainer import Trainer


class BuiltOfParts:
    """A side of `Reference` that is built of parts. A counterexample, or a stack of one's own, gives others."""

    def parts(self) -> Parts:
        """The classes everything is built of; a counterexample exchanges one."""
        from contracts.stacks.reference.model.parts import PARTS

        return PARTS

    def trainer(self) -> type[Trainer]:
        """The class that trains; a counterexample gives another."""
        from contracts.stacks.reference.training.trainer import Trainer

        return Trainer
