"""Base of mutants with another trainer."""

from __future__ import annotations

from typing import ClassVar

from contracts.stacks.reference.optim.optimizer import Optimizer
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.trainer import Trainer


class Trained(Reference):
    """The reference with its trainer or its optimizer replaced."""

    trains: ClassVar[type[Trainer]] = Trainer
    moves: ClassVar[type[Optimizer] | None] = None

    def trainer(self) -> type[Trainer]:
        if self.moves is None:
            return self.trains
        return type("Moved", (self.trains,), {"optimizer_class": self.moves})
