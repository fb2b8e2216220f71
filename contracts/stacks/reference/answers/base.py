"""The base of all answers that compute: the table of parts and the trainer class."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is loaded when something is computed, not when the stack is introduced
    from contracts.stacks.reference.model.parts import Parts
    from contracts.stacks.reference.training.trainer import Trainer


class BuiltOfParts:
    """Answers that are computed with a table of parts. A mutant, or a stack of your own, overrides these."""

    def parts(self) -> Parts:
        """The classes everything is built of; a mutant replaces one."""
        from contracts.stacks.reference.model.parts import PARTS

        return PARTS

    def trainer(self) -> type[Trainer]:
        """The trainer class; a mutant returns another."""
        from contracts.stacks.reference.training.trainer import Trainer

        return Trainer
